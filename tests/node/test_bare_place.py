"""Every command where no file can be written and the user has no home: each works or says why."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from tests.fixtures.bare import COMMAND_LINE, says, start_bare
from tests.fixtures.cassandra import own_keyspace

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

KEYSPACE = "cassieq_bare"

LASTING = {
    "serve": (("serve", "--port", "0", "--no-repair"), r"Listening on http"),
    "exporter": (("exporter", "--port", "0"), r"http://\S+"),
    "watch": (("watch", "orders", "--json"), r'"queue": "orders"'),
    "worker": (("worker", "builtins:print", "orders", "--concurrency", "1"), r"one"),
}
"""Commands that end only when they are told to, and what they say when they work."""

QUICKLY = {
    "get": "get orders --max-messages 10 --ack",
    "load put": "load put orders --count 10",
    "load get": "load get orders --count 10 --idle-timeout 1s",
}
"""In place of the examples that take their time."""

RUN_ALL = """
import json, os, shlex, sys
from typer.testing import CliRunner
from cassieq_spark.cli.app import app
from tests.unit.test_cli_help import ALL, EXAMPLES

lasting, quickly = json.loads(sys.argv[1]), json.loads(sys.argv[2])
os.chdir(sys.argv[3])
for name in map(" ".join, ALL):
    if name in lasting:
        continue
    line = quickly.get(name, EXAMPLES[name].removeprefix("cassieq "))
    done = CliRunner().invoke(app, shlex.split(line), input="")
    is_named = done.exception is None or isinstance(done.exception, SystemExit)
    print(json.dumps([name, done.exit_code, is_named, done.output]))
"""


@pytest.fixture(scope="module")
def place(cassandra: EmbeddedCassandra) -> dict[str, str]:
    """The variables of a command, with the queues of the examples."""
    own_keyspace(cassandra, KEYSPACE)
    with cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.create_queue("orders.dead")
        client.create_queue("orders", dead_letter_queue="orders.dead")
    return {
        "CASSIEQ_CONTACT_POINTS": cassandra.contact_points,
        "CASSIEQ_KEYSPACE": KEYSPACE,
        "PYTHONUNBUFFERED": "1",
    }


def test_every_command_that_ends_works_or_names_its_error(
    place: dict[str, str], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    printed = says(
        RUN_ALL,
        json.dumps(sorted(LASTING)),
        json.dumps(QUICKLY),
        str(tmp_path),
        **place,
        PYTHONPATH=str(pytestconfig.rootpath),
    )

    ended = {name: rest for name, *rest in map(json.loads, printed.splitlines())}
    assert [] == [(name, rest) for name, rest in ended.items() if not rest[1]]
    failed = {name: output for name, (code, _, output) in ended.items() if code not in {0, 3}}
    assert "too late" in failed.pop("cancel")  # the example's message is nobody's
    assert [] == [(name, text) for name, text in failed.items() if "[cassieq:" not in text]
    for name in ("put", "get", "peek", "load put", "load get", "repair", "queue list", "queue show",
                 "queue alter", "queue scheduled", "dead list"):  # fmt: skip
        assert name not in failed, failed[name]
    assert [] == [*tmp_path.iterdir()]
    assert {"cassandra start", "cassandra fetch", "account master-key"} <= failed.keys()


@pytest.mark.parametrize("name", LASTING)
def test_a_command_that_lasts_works(
    cassandra: EmbeddedCassandra, place: dict[str, str], name: str
) -> None:
    with cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.create_queue("orders").put(b"one")
    words, expected = LASTING[name]
    process = start_bare(COMMAND_LINE, *words, **place)
    assert process.stdout is not None
    assert process.stderr is not None

    said = ""
    try:
        lines = process.stderr if name in {"serve", "exporter"} else process.stdout
        while not re.search(expected, said) and (line := lines.readline()):
            said += line
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)

    assert re.search(expected, said), said + out + err
    assert "Traceback" not in err
