"""Consumers get SIGKILL, and many compete: a lease holds to its end, an ack for ever, no longer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.testing import wait_until
from tests.fault.children.deliveries import Deliveries, drain
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.queue.message import Message
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import ForkingZygote

ROUNDS = 20
AT_ONCE = 4
LONGEST_S = 0.3

CONSUMERS = 16
MESSAGES = 20_000


def put(queue: cassieq.Queue, count: int, *, at_once: int = 1_000) -> set[str]:
    """Message ids."""
    return {
        message_id
        for first in range(0, count, at_once)
        for message_id in queue.put_many(
            [b"%d" % number for number in range(first, min(first + at_once, count))]
        )
    }


def is_empty(queue: cassieq.Queue) -> bool:
    stats = queue.stats()
    return stats.visible == stats.invisible == stats.delayed == stats.dead == 0


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_what_killed_consumers_held_comes_back_after_its_lease_and_what_they_acked_does_not(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    zygote: ForkingZygote,
    queue_name: str,
    seed: int,
) -> None:
    queue = own_client.create_queue(queue_name, bucket_size=500, visibility_timeout=1)
    ids = put(queue, 6_000)
    rng = generator(seed)
    moments = [(rng.randrange(1 << 32), rng.uniform(0, LONGEST_S)) for _ in range(ROUNDS)]
    seen = Deliveries(visibility_s=1)

    def one_round(number: int) -> list[str]:
        child_seed, moment_s = moments[number]
        child = zygote.fork(
            "consumer",
            contact_points=cassandra.contact_points,
            keyspace=KEYSPACE,
            queue=queue.name,
            seed=child_seed,
            visibility_s=1,
            at_once=20,
            acked=0.5,
        )
        child.wait_for_lines(1)
        SystemClock().wait(moment_s)
        child.kill()
        return child.lines

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="killer") as pool:
        for lines in pool.map(one_round, range(ROUNDS)):
            seen.add(lines)
    last: list[Message] = []
    now = SystemClock().monotonic

    def is_drained() -> bool:
        begun = now()
        for message in drain(queue):
            seen.add_got(message.message_id, message.delivery_count, begun, now())
            last.append(message)
        return is_empty(queue)

    counts_before = {message_id: seen.last_count(message_id) for message_id in seen.got}
    wait_until(is_drained, deadline_s=60, describe=lambda: str(queue.stats()))

    drained = {message.message_id: message.delivery_count for message in last}
    held = set(counts_before) - {message_id for message_id, _ in seen.acking}
    assert held, "no consumer died with a message that it had not acked"
    assert seen.acked
    assert set() == ids - set(drained) - {message_id for message_id, _ in seen.acking}
    assert set() == held - set(drained)
    assert {} == {
        message_id: (count, counts_before[message_id])
        for message_id, count in drained.items()
        if count <= counts_before.get(message_id, 0)
    }
    assert [] == seen.faults()


@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
def test_sixteen_consumers_never_have_a_message_twice_within_its_lease(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    zygote: ForkingZygote,
    queue_name: str,
    seed: int,
) -> None:
    """Two in a hundred they give back, two they forget: those come again, and only those."""
    queue = own_client.create_queue(queue_name, bucket_size=1_000)
    ids = put(queue, MESSAGES)
    seen = Deliveries(visibility_s=3)
    children = [
        zygote.fork(
            "consumer",
            contact_points=cassandra.contact_points,
            keyspace=KEYSPACE,
            queue=queue.name,
            seed=seed + number,
            visibility_s=seen.visibility_s,
            at_once=100,
            acked=0.96,
            released=0.02,
        )
        for number in range(CONSUMERS)
    ]
    wait_until(lambda: is_empty(queue), deadline_s=120, describe=lambda: str(queue.stats()))
    for child in children:
        child.kill()
        seen.add(child.lines)

    assert CONSUMERS == len([child for child in children if '"acked"' in "".join(child.lines)])
    assert ids == set(seen.got)
    assert set() == ids - {message_id for message_id, _ in seen.acking}
    again = {message_id for message_id, counts in seen.got.items() if len(counts) > 1}
    assert again
    assert seen.released_at
    assert [] == seen.faults()


def history(**entries: list[tuple[str, int, float, float]]) -> Deliveries:
    """Of gets, (id, count, begun, returned), under leases of ten seconds."""
    seen = Deliveries(visibility_s=10)
    for entry in entries["got"]:
        seen.add_got(*entry)
    return seen


def test_a_history_in_which_leases_hold_is_found_clean() -> None:
    seen = history(got=[("m", 1, 0, 1), ("m", 3, 10, 11), ("n", 1, 0, 1), ("n", 2, 5, 6)])
    seen.released_at["n", 1] = 4
    seen.acked = {("m", 3)}
    assert [] == seen.faults()


@pytest.mark.parametrize(
    ("gets", "said"),
    [
        pytest.param([("m", 1, 0, 1), ("m", 1, 20, 21)], "m: delivery 1 was handed", id="twice"),
        pytest.param([("m", 1, 0, 1), ("m", 2, 0, 9)], "m: delivery 1 held it until", id="early"),
        pytest.param([("m", 2, 0, 1), ("m", 3, 20, 21)], "m: acked by delivery 2", id="acked"),
    ],
)
def test_a_history_that_must_not_be_is_found(
    gets: list[tuple[str, int, float, float]], said: str
) -> None:
    seen = history(got=gets)
    seen.acked = {("m", 2)}
    assert 1 == len(seen.faults())
    assert seen.faults()[0].startswith(said)
