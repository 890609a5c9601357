"""The recipe of JSON orders gets SIGKILL in mid-batch; run again, it loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from tests.children.blocking import VARIABLE
from tests.fixtures.spark import SUBMIT_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "json_orders.py"

#: The queues that its two queries read.
READ = ("json.orders", "json.counted")

#: It runs the example, and stops for ever where `VARIABLE` says. The second query is the one that
#: counts; the others have no such source.
CHILD = """
import runpy
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

import cassieq_spark.spark
from tests.children.blocking import BlockingSource, stop_at

settle, with_format = cassieq_spark.spark.settle, DataStreamReader.format
settled, sources = [], []


def stopping(*arguments, **more):
    stop_at("written", len(settled))
    settled.append(settle(*arguments, **more))
    stop_at("rejected", len(settled) - 1)
    return settled[-1]


def of_the_count(reader, name):
    sources.append(name)
    return with_format(reader, "cassieq_blocking" if len(sources) == 2 else name)


cassieq_spark.spark.settle, DataStreamReader.format = stopping, of_the_count
SparkSession.builder.getOrCreate().dataSource.register(BlockingSource)
runpy.run_path(sys.argv[1], run_name="__main__")
"""

#: (where the program dies, and in which batch: how many orders it has then leased, and how many to
#: count). The second batch has the bad orders. Valid ones are written and bad ones not rejected;
#: all is done, and Spark has committed nothing; the query that counts has planned its second batch.
POINTS = [
    ("written.1", (44, 0)),
    ("rejected.1", (41, 0)),
    ("planned.1", (0, 41)),
]


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I7")
@pytest.mark.parametrize(("point", "leased"), POINTS)
def test_a_recipe_killed_in_mid_batch_loses_and_doubles_nothing(
    cassandra: EmbeddedCassandra,
    start_script: Callable[..., Script],
    tmp_path: Path,
    point: str,
    leased: tuple[int, int],
) -> None:
    keyspace = f"cassieq_k{new_uuid().hex[:12]}"
    announced = tmp_path / point
    environment = {
        "CASSIEQ_CONTACT_POINTS": cassandra.contact_points,
        "CASSIEQ_KEYSPACE": keyspace,
        "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS,
        VARIABLE: str(announced),
    }
    script = start_script(CHILD, str(EXAMPLE), env=environment)
    script.wait_until(announced.exists, point, deadline_s=300)
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        assert leased == tuple(client.queue(name).stats().in_flight for name in READ)
        assert 101 == client.queue("json.valid").stats().visible
    script.kill()

    again = start_script(EXAMPLE.read_text("utf-8"), env=environment)
    assert 0 == again.wait(deadline_s=300), again.output

    minutes = [line for line in again.lines if line.startswith("12:")]
    assert [f"12:{minute:02d} 10" for minute in range(10)] == minutes
    assert 3 == sum(line.endswith(" - no valid order") for line in again.lines)
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        valid = client.queue("json.valid").get(1_000)
        letters = client.queue("json.dead").get(10)
        left = [client.queue(name).stats() for name in READ]
    assert sorted(range(101)) == sorted(
        int(one.body.split(b",")[0].removeprefix(b'{"number": ')) for one in valid
    )
    assert 101 == len({one.message_id for one in valid})
    assert {"no valid order"} == {one.headers["cassieq-reason"] for one in letters}
    assert 3 == len(letters)
    assert [(0, 0, 0)] * 2 == [(one.visible, one.in_flight, one.dead) for one in left]
