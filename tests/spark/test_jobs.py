"""The jobs that the guides show, as they stand, in the tests' session."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store import store
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.streams import bodies, bodies_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark import Delivery
    from tests.fixtures.streams import Streams

COUNTS = ("visible", "in_flight", "delayed")
JOBS = Path(__file__).resolve().parents[2] / "jobs"


@pytest.fixture
def _no_shared_store() -> Iterator[None]:
    """settle keeps its session, as a driver's program would want it."""
    yield
    store.close_shared()


def run(job: str, streams: Streams, *more: str) -> None:
    main = runpy.run_path(str(JOBS / job))["main"]
    where = ["--contact-points", streams.options["contactPoints"], "--keyspace", KEYSPACE]
    folders = [
        *("--output", str(streams.directory / "out")),
        *("--checkpoint", str(streams.checkpoint())),
    ]
    assert 0 == main([*where, "--queue", streams.queue.name, *folders, *more])


def test_a_queue_into_files(streams: Streams) -> None:
    streams.put(streams.numbered(0, 700))
    run("to_files.py", streams, "--drain")
    streams.put(streams.numbered(700, 899))
    streams.queue.put(b"m-899", group="g")
    run("to_files.py", streams, "--drain")
    written = streams.spark.read.parquet(str(streams.directory / "out"))
    assert bodies(0, 900) == bodies_of(written.collect())
    assert bodies(899, 900) == bodies_of(written.where("group = 'g'").collect())
    streams.wait_until_empty()


def test_the_lag_of_each_batch_is_logged_where_the_level_asks_for_it(
    streams: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    streams.put(streams.numbered(0, 100))
    run("to_files.py", streams, "--drain")
    assert "query_progress" not in capsys.readouterr().err

    streams.put(streams.numbered(100, 300))
    run("to_files.py", streams, "--drain", "--log-level", "info", "--log-format", "json")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[0] == "{"]
    told = [one for one in lines if one.get("event") == "query_progress"]
    assert {("INFO", streams.queue.name)} == {
        (one["level"], one["fields"]["queue"]) for one in told
    }


@pytest.mark.usefixtures("capsys", "_no_shared_store")
def test_orders_with_a_verdict_each(streams: Streams) -> None:
    dead = streams.client.create_queue(f"{streams.queue.name}.dead")
    streams.client.alter_queue(streams.queue.name, dead_letter_queue=dead.name)
    good = [{"id": str(at), "amount": at / 4} for at in range(5)]
    later = {"id": "later", "amount": 1, "not_before": "2999-01-01T00:00:00Z"}
    streams.queue.put_many([json.dumps(one).encode() for one in (*good, later)])
    streams.queue.put(b"no order")

    run("settle_rows.py", streams)
    written = streams.spark.read.parquet(str(streams.directory / "out"))
    assert {"0", "1", "2", "3", "4"} == {row.id for row in written.collect()}
    assert [b"no order"] == [one.body for one in _dead_letters(streams, dead.name)]
    assert (0, 0, 1) == tuple(getattr(streams.queue.stats(), name) for name in COUNTS)


def _dead_letters(streams: Streams, name: str) -> list[Delivery]:
    streams.client.repair(streams.queue.name)
    return streams.client.queue(name).get(10)
