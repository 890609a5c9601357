"""Two clients whose clocks are ten minutes apart: a lease is as long for the one as the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.testing import wait_until
from tests.fixtures.histories import deliveries, is_empty, put, without_pause
from tests.storm.checker import check
from tests.storm.dials import Dials

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.histories import Play

APART_S = 600


@pytest.mark.invariant("I2")
def test_consumers_whose_clocks_are_ten_minutes_apart_respect_each_others_leases(
    own_client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    play: Play,
    queue_name: str,
    seed: int,
) -> None:
    """By its own clock, the one ahead would take what the other holds, and keep its own for ten
    minutes from the other; the queue would not be empty before."""
    queue = own_client.create_queue(queue_name, bucket_size=100)
    put(queue, 400, play.recorder())
    pace = without_pause(20, 1.5, {"ack": 1, "forget": 1})
    children = []
    for number, ahead_s in enumerate((0, APART_S)):
        who = f"consumer{number}"
        dials_file = play.directory / f"{who}.dials"
        Dials(dials_file).ahead_s = ahead_s
        children.append(
            play.start(
                who,
                cassandra.contact_points,
                [queue],
                seed + number,
                pace=pace,
                dials_file=str(dials_file),
            )
        )

    wait_until(is_empty(queue), deadline_s=60, describe=lambda: str(queue.stats()))
    for child in children:
        child.kill()
    first, second = (
        {key for key, _, _ in deliveries(play.entries(f"consumer{number}"), "got")}
        for number in (0, 1)
    )
    assert first & second, "no message went from one client to the other"
    assert [] == check(play.entries())
