"""Pointers are max registers without LWT (G4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import QueueDeleted, SchemaMismatch
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import DELETED, Pointer, Pointers
from cassieq_spark.store import portal, schema, statements
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from tests.fixtures.queues import Door


def test_p19_absent_is_zero_and_no_row_is_written_for_it(door: Door) -> None:
    assert Pointers() == portal.run(door.lane.pointers.read())
    assert [] == portal.run(door.session.run(statements.READ_POINTERS, (door.lane.lane_id,)))


@pytest.mark.invariant("I6")
def test_p19_a_pointer_never_goes_back_whoever_writes_last(door: Door) -> None:
    lane = door.lane.lane_id
    for value in (5, 3, 9, 1, 8):
        portal.run(door.store.lane(lane).pointers.advance(Pointer.READER, value))
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda value: portal.run(
                    door.store.lane(lane).pointers.advance(Pointer.TIME, value)
                ),
                range(40, 0, -1),
            )
        )
    assert Pointers(reader=BucketNo(9), time=40) == portal.run(
        door.store.lane(lane).pointers.read()
    )


@pytest.mark.parametrize("value", [0, -1])
def test_p19_a_value_that_is_no_timestamp_is_refused(door: Door, value: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        portal.run(door.lane.pointers.advance(Pointer.REPAIR, value))


def test_r25_a_lane_marked_deleted_says_so_to_everybody(door: Door) -> None:
    bucket = door.put(b"a")
    reader = door.reader()
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, DELETED))
    with pytest.raises(QueueDeleted):
        portal.run(door.lane.is_dropped(bucket))
    with pytest.raises(QueueDeleted):
        portal.run(reader.get(1))


def test_p13_a_reservation_does_not_bring_a_deleted_lane_back(door: Door) -> None:
    monoton = portal.run(door.lane.monotons.read())
    assert monoton is not None
    portal.run(door.lane.monotons.delete(monoton))
    with pytest.raises(QueueDeleted):
        door.reserve()
    assert portal.run(door.lane.monotons.read()) is None


@pytest.mark.usefixtures("still_time")
def test_r23_bootstrap_proves_small_far_and_largest_timestamps(door: Door) -> None:
    """A cluster whose guardrails refuse one of the three is found out at once."""
    for number in range(3):
        door.faults.plan("probe_timestamp", Fault.REFUSE, after=number)
        with pytest.raises(SchemaMismatch, match="write timestamp"):
            portal.run(schema._prove_timestamps(door.session))
    before = door.counts["probe_timestamp"]
    portal.run(schema._prove_timestamps(door.session))
    assert before + 3 == door.counts["probe_timestamp"]
