"""The renewal of a batch's leases by itself (design 7)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model.offset import INITIAL
from cassieq_spark.spark.admission import Limits
from cassieq_spark.spark.planner import Planner
from cassieq_spark.testing import ManualClock, wait_until
from cassieq_spark.testing.faults import FaultyStore

if TYPE_CHECKING:
    from tests.fixtures.streams import Streams

VISIBILITY_S = 0.6


class _Pauses(threading.Event):
    """Notes for how long it was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seen.append(timeout)
        return super().wait(timeout)


@pytest.mark.invariant("I2")
def test_a_renewal_that_an_outage_held_up_is_followed_by_another_at_once(streams: Streams) -> None:
    """What it has written at last is an end that was reckoned before the outage."""
    streams.put(streams.numbered(0, 50, 1))
    with streams.in_an_hour() as lane:
        clock = lane.clock
        assert isinstance(clock, ManualClock)
        planner = Planner(lane, streams.parsed(visibilityTimeout=VISIBILITY_S))
        planner._renewal._ended = pauses = _Pauses()
        try:
            planner.latest(INITIAL.to_json(), Limits())
            with FaultyStore().on(lane.store.session) as faults:
                faults.before("write_hint", lambda: clock.advance(VISIBILITY_S))
                wait_until(lambda: 0.0 in pauses.seen, describe=lambda: str(pauses.seen))
        finally:
            planner.close()
    assert VISIBILITY_S / 3 == pauses.seen[0]
