"""Consumers get SIGKILL, and many compete: a lease holds to its end, an ack for ever, no longer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.testing import wait_until
from tests.fixtures.histories import deliveries, is_empty, put, without_pause
from tests.storm import calm
from tests.storm.checker import check

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.histories import Play

ROUNDS = 20
AT_ONCE = 4
LONGEST_S = 0.3

CONSUMERS = 16
MESSAGES = 20_000


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_what_killed_consumers_held_comes_back_after_its_lease_and_what_they_acked_does_not(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    play: Play,
    queue_name: str,
    seed: int,
) -> None:
    queue = own_client.create_queue(queue_name, bucket_size=500, visibility_timeout=1)
    record = play.recorder()
    put(queue, 6_000, record)
    rng = generator(seed)
    moments = [(rng.randrange(1 << 32), rng.uniform(0, LONGEST_S)) for _ in range(ROUNDS)]
    pace = without_pause(20, 1.0, {"ack": 1, "forget": 1})

    def one_round(number: int) -> None:
        who, (child_seed, moment_s) = f"consumer{number}", moments[number]
        child = play.start(who, cassandra.contact_points, [queue], child_seed, pace=pace)
        play.wait_for(child, who, "got")
        SystemClock().wait(moment_s)
        child.kill()

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="killer") as pool:
        list(pool.map(one_round, range(ROUNDS)))
    before = play.entries()
    held = deliveries(before, "got") - deliveries(before, "acks")
    assert held, "no consumer died with a message that it had not acked"
    assert any(entry["what"] == "acked" for entry in before)

    assert [] == calm.drain(own_client, [queue.name], record)
    assert [] == check(play.entries())


@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_sixteen_consumers_never_have_a_message_twice_within_its_lease(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    play: Play,
    queue_name: str,
    seed: int,
) -> None:
    """Two in a hundred they give back, two they forget: those come again, and only those."""
    queue = own_client.create_queue(queue_name, bucket_size=1_000)
    put(queue, MESSAGES, play.recorder())
    pace = without_pause(100, 3.0, {"ack": 96, "release": 2, "forget": 2})
    children = [
        play.start(f"consumer{number}", cassandra.contact_points, [queue], seed + number, pace=pace)
        for number in range(CONSUMERS)
    ]
    wait_until(is_empty(queue), deadline_s=120, describe=lambda: str(queue.stats()))
    for child in children:
        child.kill()

    entries = play.entries()
    assert CONSUMERS == len({one["who"] for one in entries if one["what"] == "acked"})
    assert {count for _, _, count in deliveries(entries, "got")} >= {1, 2}
    assert any(one["what"] == "gives" for one in entries)
    assert [] == check(entries)
