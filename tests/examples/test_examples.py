"""The examples run as they stand, as programs of their own, and do what their page says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.testing import wait_until
from tests.fixtures.commands import CommandLine, end
from tests.fixtures.spark import SUBMIT_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.testing import EmbeddedCassandra

    Run = Callable[[str], str]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def keyspace() -> str:
    return f"cassieq_x{new_uuid().hex[:12]}"


@pytest.fixture
def cli(cassandra: EmbeddedCassandra, keyspace: str) -> CommandLine:
    return CommandLine(cassandra.contact_points, keyspace=keyspace)


@pytest.fixture
def client(cassandra: EmbeddedCassandra, keyspace: str) -> Iterator[cassieq.Client]:
    """Of the example's keyspace."""
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as own:
        yield own


@pytest.fixture
def run(cli: CommandLine, spark_environment: dict[str, str], tmp_path: Path) -> Run:
    """Run an example in an empty folder, and return what it has printed."""

    def start(name: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)],
            cwd=tmp_path,
            env=cli.environment(
                **spark_environment,
                PYTHONPATH=os.pathsep.join([str(EXAMPLES.parent), *sys.path]),
                PYSPARK_SUBMIT_ARGS=SUBMIT_ARGUMENTS,
            ),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert 0 == done.returncode, done.stderr[-4_000:]
        return done.stdout

    return start


@pytest.mark.long
def test_scheduled_messages(run: Run) -> None:
    assert "cancelled: True\nscheduled: 1\nnow: stand up\n" == run("scheduled.py")


def test_retry_with_backoff(run: Run, cli: CommandLine, client: cassieq.Client) -> None:
    text = (EXAMPLES / "retry_backoff.py").read_text("utf-8")
    (command,) = [line for line in text.splitlines() if line.startswith("cassieq worker")]
    assert "put 3 payments\n" == run("retry_backoff.py")

    ended = end(cli.start(*command.split()[1:], cwd=EXAMPLES))
    client.repair("payments")

    assert 0 == ended.code, ended.err
    assert ["12 EUR", "30 EUR"] == sorted(line[8:14] for line in ended.out.splitlines())
    assert 4 == ended.err.count("BankIsAway: attempt") // 2  # in the log, and in the traceback
    (letter,) = client.queue("payments.dead").peek()
    assert (b"broken", "4") == (letter.body, letter.headers["cassieq-deliveries"])
    stats = client.queue("payments").stats()
    assert (0, 0, 0) == (stats.visible, stats.in_flight, stats.dead)


@pytest.mark.long
def test_a_producer_in_fastapi(cli: CommandLine, client: cassieq.Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "fastapi_producer:app", "--port", str(port)],
        cwd=EXAMPLES,
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
            wait_until(lambda: _answers(http) or process.poll() is not None, deadline_s=60)
            order = {"customer": "ada", "amount": 7}
            key = {"Idempotency-Key": "k1"}
            first, again = (http.post("/orders", json=order, headers=key) for _ in range(2))
            other = http.post("/orders", json=order)
            wrong = http.post("/orders", json={"customer": "ada"})
    finally:
        process.terminate()
        process.communicate(timeout=60)

    assert [202, 202, 202, 422] == [one.status_code for one in (first, again, other, wrong)]
    assert first.json() == again.json() != other.json()
    messages = client.queue("api.orders").get()
    assert [b'{"customer":"ada","amount":7}'] * 2 == [one.body for one in messages]


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/openapi.json").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_etl_with_verdicts_row_by_row(run: Run) -> None:
    printed = run("etl_verdicts.py").splitlines()
    assert {
        "acked 97, released 1, rejected 2",
        "orders in the table: 98",
        'dead: {"customer": 7} - no amount',
        "dead: no JSON - no amount",
    } <= set(printed)


@pytest.mark.long
def test_fan_out_to_two_queues(run: Run) -> None:
    assert ["fan.orders 0", "fan.audit 1000", "fan.large 100"] == run("fan_out.py").splitlines()


@pytest.mark.long
def test_dead_letters_into_a_table_and_back(run: Run) -> None:
    assert [
        "mail.out no address too bob",
        "mail.out no address too eve",
        "back: ['to bob', 'to eve']",
        "dead letters left: 0",
    ] == run("dead_letters.py").splitlines()


@pytest.mark.long
def test_state_over_a_queue(run: Run) -> None:
    assert [
        "first run",
        "ada 2 30",
        "bob 1 5",
        "second run",
        "ada 3 100",
        "bob 1 5",
        "left in the queue: 0",
    ] == run("stateful.py").splitlines()


def test_json_by_a_schema_with_counts_a_minute(run: Run) -> None:
    expected = [
        *(f"12:{minute:02d} 10" for minute in range(10)),
        "valid: 101",
        "dead: no JSON - no valid order",
        'dead: {"number": 7} - no valid order',
        'dead: {"number": "x", "amount": 1, "at": "noon"} - no valid order',
    ]
    assert sorted(expected) == sorted(run("json_orders.py").splitlines())


@pytest.mark.parametrize("name", ALL)
def test_each_example_is_on_its_page_with_a_picture(name: str) -> None:
    page = (EXAMPLES.parent / "docs" / "guides" / "examples.md").read_text("utf-8")
    assert f"(../../examples/{name})" in page
    assert f"(example-{name.removesuffix('.py')}.svg)" in page
