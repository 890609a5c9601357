"""Producers get SIGKILL at any moment: what they were told is stored, is delivered, and once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from tests.fault.children.deliveries import drain
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.queue.message import Message
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Child, ForkingZygote

ROUNDS = 200
AT_ONCE = 4
LONGEST_S = 0.15
"""After a producer's first ack, or in every fourth round after it has connected: then it may die
in its first reservation, and have acked nothing."""


def acked_by(child: Child) -> list[tuple[str, str]]:
    """(message id, body) of each message whose put returned."""
    return [(line[:36], line[37:]) for line in child.lines[1:]]


@pytest.mark.invariant("I1")
def test_every_message_that_a_killed_producer_had_acknowledged_is_delivered_once(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    zygote: ForkingZygote,
    queue_name: str,
    seed: int,
) -> None:
    """From one queue a consumer takes all the while, so that its buckets close under their writers;
    the other is left alone until all producers are dead."""
    taken, untouched = (
        own_client.create_queue(f"{queue_name}.{number}", bucket_size=500) for number in (1, 2)
    )
    rng = generator(seed)
    moments = [(rng.randrange(1 << 32), rng.uniform(0, LONGEST_S)) for _ in range(ROUNDS)]

    def one_round(number: int) -> list[tuple[str, str]]:
        child_seed, moment_s = moments[number]
        child = zygote.fork(
            "producer",
            contact_points=cassandra.contact_points,
            keyspace=KEYSPACE,
            queues=[taken.name, untouched.name],
            seed=child_seed,
        )
        child.wait_for_lines(1 if number % 4 == 0 else 2)
        SystemClock().wait(moment_s)
        child.kill()
        return acked_by(child)

    found: list[Message] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="killer") as pool:
        rounds = [pool.submit(one_round, number) for number in range(ROUNDS)]
        try:
            while not all(one.done() for one in rounds):
                found += drain(taken, wait_s=0.5)
        finally:
            for one in rounds:
                one.cancel()
    acked = {pair for one in rounds for pair in one.result()}
    in_time = len(found)
    found += drain(taken)
    from_untouched = list(drain(untouched))
    found += from_untouched

    assert ROUNDS * 3 // 4 <= len([one for one in rounds if one.result()])
    assert in_time > 0
    assert from_untouched
    assert set() == acked - {(one.message_id, one.body.decode()) for one in found}
    assert {} == {key: n for key, n in Counter(one.message_id for one in found).items() if n > 1}
    assert {} == {key: n for key, n in Counter(one.body for one in found).items() if n > 1}
    assert {1} == {one.delivery_count for one in found}
    for queue in (taken, untouched):
        stats = queue.stats()
        assert (0, 0, 0) == (stats.visible, stats.invisible, stats.delayed)
