"""A query's planner comes from the fork server of its Spark (ADR 31)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cassieq_spark.testing import wait_until
from tests.fixtures.processes import outermost
from tests.fixtures.streams import Collected, bodies

if TYPE_CHECKING:
    import psutil

    from tests.fixtures.streams import Streams

SERVER = "cassieq_spark.spark.fork_server"


def servers_of(spark: int) -> list[psutil.Process]:
    """Fork servers that serve this process, without their children."""
    return outermost(
        lambda words: SERVER in words and str(spark) in words and Path(words[-4]).is_socket()
    )


def test_a_later_query_has_a_forked_planner_that_ends_with_it(streams: Streams) -> None:
    """Spark takes the process that connects, whoever its parent is: 4.2 and 4.3."""
    jvm = streams.spark._jvm
    assert jvm is not None
    spark = jvm.java.lang.ProcessHandle.current().pid()
    streams.put(streams.numbered(0, 100))
    assert bodies(0, 100) == streams.drain().bodies
    (server,) = wait_until(lambda: servers_of(spark), deadline_s=60, describe="a server serves")
    assert 1 == server.num_threads()  # a lock of another one would never be free in a child
    before = {one.pid for one in server.children()}
    # Spark keeps the daemons that have planned it, each with a worker.
    assert [one for one in server.children() if one.children()]

    streams.put(streams.numbered(100, 200))
    collected = Collected()
    query = streams.start(streams.source(), collected, once=False)
    try:
        query.processAllAvailable()
        (planner,) = [one for one in server.children() if one.pid not in before]
    finally:
        query.stop()

    assert bodies(100, 200) == collected.bodies
    wait_until(lambda: not planner.is_running(), deadline_s=60, describe="the planner ends")
