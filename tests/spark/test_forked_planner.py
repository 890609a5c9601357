"""What plans a query comes from the fork server of its Spark (ADR 31, 38)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.testing import wait_until
from tests.fixtures.processes import CHILDREN, fork_servers, serves
from tests.fixtures.streams import Collected, bodies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script
    from tests.fixtures.streams import Streams


def test_a_later_query_has_a_forked_planner_that_ends_with_it(streams: Streams) -> None:
    """Spark takes the process that connects, whoever its parent is: 4.2 and 4.3."""
    jvm = streams.spark._jvm
    assert jvm is not None
    spark = jvm.java.lang.ProcessHandle.current().pid()
    streams.put(streams.numbered(0, 100))
    assert bodies(0, 100) == streams.drain().bodies
    (server,) = wait_until(
        lambda: [one for one in fork_servers(spark) if serves(one)],
        deadline_s=60,
        describe="a server serves",
    )
    assert 1 == server.num_threads()  # a lock of another one would never be free in a child
    before = {one.pid for one in server.children()}

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


@pytest.mark.parametrize("how", ["found", "registered"])
def test_all_that_plans_a_sessions_first_query_is_forked_by_one_server(
    client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    start_script: Callable[..., Script],
    tmp_path: Path,
    how: str,
) -> None:
    """A daemon makes the source, another the function of its tasks (4.2 and 4.3)."""
    queue = client.create_queue(f"first_query_{how}")
    queue.put_many([b"x"] * 10)
    script = start_script(
        (CHILDREN / "first_query.py").read_text(encoding="utf-8"),
        cassandra.contact_points,
        str(tmp_path),
        queue.name,
        how,
    )
    assert 0 == script.wait(deadline_s=180), script.output[-5_000:]
    (said,) = [line for line in script.lines if line.startswith("FOUND ")]
    assert {"rows": 10, "servers": 1, "daemons": 2, "planners": 1} == json.loads(said[6:])
