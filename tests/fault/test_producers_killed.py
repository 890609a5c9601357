"""Producers get SIGKILL at any moment: what they were told is stored, is delivered, and once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from tests.children.consumer import Consumer
from tests.fixtures.histories import deliveries
from tests.storm import calm
from tests.storm.checker import check

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.histories import Play

ROUNDS = 200
AT_ONCE = 4
HOLD_S = 600.0
"""What is got stays ours, however slow the machine: who gets a message again has found it twice."""

LONGEST_S = 0.15
"""After a producer's first ack, or in every fourth round after it has connected: then it may die
in its first reservation, and have acked nothing."""

PACE = {"threads": 2, "pause_s": 0, "many": 8, "delayed": 0.0}


@pytest.mark.invariant("I1")
def test_every_message_that_a_killed_producer_had_acknowledged_is_delivered_once(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    play: Play,
    queue_name: str,
    seed: int,
) -> None:
    """From one queue a consumer takes all the while, so that its buckets close under their writers;
    the other is left alone until all producers are dead."""
    queues = taken, untouched = [
        own_client.create_queue(f"{queue_name}.{number}", bucket_size=500) for number in (1, 2)
    ]
    record = play.recorder()
    rng = generator(seed)
    moments = [(rng.randrange(1 << 32), rng.uniform(0, LONGEST_S)) for _ in range(ROUNDS)]

    def one_round(number: int) -> None:
        who, (child_seed, moment_s) = f"producer{number}", moments[number]
        child = play.start(who, cassandra.contact_points, queues, child_seed, pace=PACE)
        play.wait_for(child, who, "connected" if number % 4 == 0 else "put")
        SystemClock().wait(moment_s)
        child.kill()

    consumer = Consumer(taken, record)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="killer") as pool:
        rounds = [pool.submit(one_round, number) for number in range(ROUNDS)]
        try:
            while not all(one.done() for one in rounds):
                consumer.ack(consumer.get(1_000, HOLD_S, 0.5))
        finally:
            for one in rounds:
                one.cancel()
    for one in rounds:
        one.result()
    before = play.entries()
    assert deliveries(before, "got")
    assert [] == calm.drain(own_client, [taken.name, untouched.name], record)

    entries = play.entries()
    acked_by = {one["who"] for one in entries if one.get("stored")}
    assert ROUNDS * 3 // 4 <= len(acked_by)
    assert untouched.name in {one["queue"] for one in entries if one["what"] == "got"}
    assert {1} == {count for _, _, count in deliveries(entries, "got")}
    assert [] == check(entries)
