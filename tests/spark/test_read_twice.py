"""Which plans read one load twice: each row of the table in docs/guides/source-why.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, bodies, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tests.fixtures.streams import Streams

MESSAGES = 50


def sql(query: str) -> Callable[[DataFrame], DataFrame]:
    """A query about the frame as temporary view ``queued``."""

    def run(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("queued")
        return frame.sparkSession.sql(query)

    return run


def joined(frame: DataFrame) -> DataFrame:
    return frame.alias("x").join(frame.alias("y"), F.expr("x.body = y.body")).select("x.body")


def joined_after_more(frame: DataFrame) -> DataFrame:
    """Both sides have been worked on, each in its own way."""
    right = frame.withColumnRenamed("body", "other").where("other is not null")
    return frame.select("body", "tag").join(right, F.expr("body = other")).select("body")


REFUSED = {
    "join": joined,
    "join of two frames that were made of it": joined_after_more,
    "view": sql("SELECT x.body FROM queued x JOIN queued y ON x.body = y.body"),
}

UNITED = {
    "union": lambda frame: frame.union(frame).select("body"),
    "union of a view": sql("SELECT body FROM queued UNION ALL SELECT body FROM queued"),
    "union of a CTE": sql(
        "WITH c AS (SELECT body FROM queued) SELECT * FROM c UNION ALL SELECT * FROM c"
    ),
}


@pytest.mark.parametrize(
    "plan", [one if one == "join" else pytest.param(one, marks=pytest.mark.long) for one in REFUSED]
)
def test_a_plan_that_joins_a_load_with_itself_is_refused_before_anything_is_leased(
    streams: Streams, plan: str
) -> None:
    streams.put(streams.numbered(0, MESSAGES))
    is_once = plan == "join"  # of the two triggers, each begins with another call of Spark's
    query = streams.start(REFUSED[plan](streams.source()), Collected(), once=is_once)

    assert "[cassieq:usage] this query reads one load() twice" in failure_of(query)
    assert [] == streams.leases
    assert MESSAGES == streams.queue.stats().visible


@pytest.mark.parametrize("plan", UNITED)
def test_a_union_of_a_load_with_itself_reads_it_once_and_has_each_message_twice(
    streams: Streams, plan: str
) -> None:
    streams.put(streams.numbered(0, MESSAGES))
    seen = Collected()
    assert streams.start(UNITED[plan](streams.source()), seen).awaitTermination(120)

    assert Counter(dict.fromkeys(bodies(0, MESSAGES), 2)) == seen.bodies
    assert streams.is_empty()


def test_a_cte_that_is_joined_with_itself_is_one_source_and_complete(streams: Streams) -> None:
    streams.put(streams.numbered(0, MESSAGES))
    plan = sql("WITH c AS (SELECT body FROM queued) SELECT x.body FROM c x JOIN c y USING (body)")
    seen = Collected()
    assert streams.start(plan(streams.source()), seen).awaitTermination(120)

    assert bodies(0, MESSAGES) == seen.bodies
    assert streams.is_empty()


def test_two_loads_of_one_queue_are_two_consumers(streams: Streams) -> None:
    streams.put(streams.numbered(0, MESSAGES))
    seen = Collected()
    both = streams.source(maxMessagesPerTrigger=10).union(streams.source(maxMessagesPerTrigger=10))
    assert streams.start(both, seen).awaitTermination(120)

    assert bodies(0, MESSAGES) == seen.bodies


def test_two_queries_of_one_load_are_two_consumers(streams: Streams) -> None:
    """They start at the same time, and both go on."""
    frame = streams.source(maxMessagesPerTrigger=10)
    one, other = Collected(), Collected()
    queries = [
        streams.start(frame, seen, checkpoint=f"of-{at}", once=False)
        for at, seen in enumerate((one, other))
    ]
    try:
        streams.put(streams.numbered(0, MESSAGES))
        wait_until(lambda: (one.bodies + other.bodies).total() >= MESSAGES, deadline_s=100)
        assert [True, True] == [query.isActive for query in queries]
    finally:
        for query in queries:
            query.stop()
    assert bodies(0, MESSAGES) == one.bodies + other.bodies


def test_a_query_of_a_load_starts_again_after_the_one_before_has_ended(streams: Streams) -> None:
    frame = streams.source()
    for number in range(2):
        streams.put(streams.numbered(number, number + 1))
        seen = Collected()
        assert streams.start(frame, seen).awaitTermination(120)
        assert bodies(number, number + 1) == seen.bodies
