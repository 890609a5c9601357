"""Two clients whose clocks are ten minutes apart: a lease is as long for the one as the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.testing import wait_until
from tests.fault.children.deliveries import Deliveries
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import ForkingZygote

APART_S = 600


@pytest.mark.invariant("I2")
def test_consumers_whose_clocks_are_ten_minutes_apart_respect_each_others_leases(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    zygote: ForkingZygote,
    queue_name: str,
    seed: int,
) -> None:
    """By its own clock, the one ahead would take what the other holds, and keep its own for ten
    minutes from the other; the queue would not be empty before."""
    queue = own_client.create_queue(queue_name, bucket_size=100)
    ids = queue.put_many([b"%d" % number for number in range(400)])
    seen = Deliveries(visibility_s=1.5)
    children = [
        zygote.fork(
            "consumer",
            contact_points=cassandra.contact_points,
            keyspace=KEYSPACE,
            queue=queue.name,
            seed=seed + ahead_s,
            visibility_s=seen.visibility_s,
            at_once=20,
            acked=0.5,
            clock_ahead_s=ahead_s,
        )
        for ahead_s in (0, APART_S)
    ]

    def is_empty() -> bool:
        stats = queue.stats()
        return stats.visible == stats.invisible == 0

    wait_until(is_empty, deadline_s=60, describe=lambda: str(queue.stats()))
    consumers = []
    for child in children:
        child.kill()
        seen.add(child.lines)
        one = Deliveries(visibility_s=1.5)
        one.add(child.lines)
        consumers.append(one)

    first, second = consumers
    assert set(first.got) & set(second.got), "no message went from one client to the other"
    assert set(ids) == {message_id for message_id, _ in seen.acking}
    assert [] == seen.faults()
