"""The node gets SIGKILL under load and comes back: no client is touched, nothing acked is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.histories import without_pause
from tests.storm import calm
from tests.storm.checker import check

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.histories import Play
    from tests.storm.history import Entry

KILLS = 3
VISIBILITY_S = 4.0
OPERATIONS = 20

PUTS = {"threads": 1, "pause_s": 0, "delayed": 0.0}
GETS = without_pause(20, VISIBILITY_S, {"ack": 1})


def waiting_in(outage: tuple[float, float], entries: list[Entry]) -> set[str]:
    """Who had a put under way when the node was away: it failed, or was tried until it was back."""
    killed_s, back_s = outage
    begun = {entry["op"]: entry["at"] for entry in entries if entry["what"] == "puts"}
    return {
        entry["who"]
        for entry in entries
        if entry["what"] == "put" and begun[entry["op"]] < back_s and entry["at"] > killed_s
    }


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_a_node_killed_under_load_and_restarted_loses_nothing_that_was_acknowledged(
    own_cassandra: EmbeddedCassandra, play: Play, queue_name: str, seed: int
) -> None:
    rng = generator(seed)
    (node,) = own_cassandra.nodes
    points = own_cassandra.contact_points
    with cassieq.connect(points, keyspace=KEYSPACE) as client:
        client.bootstrap()
        queue = client.create_queue(queue_name, bucket_size=200, visibility_timeout=VISIBILITY_S)
        paces = {"producer0": PUTS, "producer1": PUTS, "consumer0": GETS, "consumer1": GETS}
        children = {
            who: play.start(who, points, [queue], seed + number, pace=pace)
            for number, (who, pace) in enumerate(paces.items())
        }
        play.wait_for_progress(children, OPERATIONS)
        outages: list[tuple[float, float]] = []
        for _ in range(KILLS):
            SystemClock().wait(rng.uniform(0, 0.5))
            node.kill()
            killed_s = SystemClock().monotonic()
            node.start()
            outages.append((killed_s, SystemClock().monotonic()))
            play.wait_for_progress(children, OPERATIONS)
        for child in children.values():
            child.kill()

        assert [] == calm.drain(client, [queue.name], play.recorder())
        entries = play.entries()
        for outage in outages:
            assert {"producer0", "producer1"} == waiting_in(outage, entries)
        assert [] == check(entries)
