"""Updated bodies: none stays that nobody can read, and none is read before there is room for it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import LeaseLost, RowCorrupt
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.queue import fetch as fetching
from cassieq_spark.queue import seal
from cassieq_spark.queue.fetch import Planned, fetch
from cassieq_spark.queue.settle import settle
from cassieq_spark.store import portal
from cassieq_spark.store.tables.messages import Overlays
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.queue.fetch import Found
    from tests.fixtures.queues import Door, OpenDoor

FIRST = BucketNo(0)


def stored_revisions(door: Door) -> set[tuple[int, int]]:
    cql = "SELECT id, revision FROM {ks}.overlay WHERE lane = ? AND bucket = ?"
    rows = run_cql(door.session, cql, door.lane.lane_id, FIRST)
    return {(row.id, row.revision) for row in rows}


def held(door: Door, count: int = 1) -> list[cassieq.Delivery]:
    door.queue.put_many([b"m"] * count)
    return door.queue.get(count)


@pytest.mark.invariant("I9")
def test_an_update_leaves_nothing_of_the_one_before(door: Door) -> None:
    """One message that is updated every ten seconds for a month: its partition stays small."""
    (message, other) = held(door, 2)
    door.queue.update(other, body=b"another message's")
    for at in range(5):
        message = door.queue.update(message, body=b"%d" % at * 600_000)
    wait_until(lambda: set(door.value(0).revisions) == stored_revisions(door))
    assert 2 == len(stored_revisions(door))
    door.queue.update(message, visibility_timeout=0)
    (again,) = door.queue.get()
    assert b"4" * 600_000 == again.body


def test_a_body_whose_update_was_refused_does_not_stay(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    (message,) = held(door)
    # Between the first look and the CAS.
    door.faults.before("write_overlay", lambda: other.queue.ack(message.receipt))
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.update(message, body=b"new")
    wait_until(lambda: not stored_revisions(door))


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.REFUSE])
def test_an_update_is_done_though_the_body_it_replaced_cannot_be_dropped(
    door: Door, fault: Fault
) -> None:
    (message,) = held(door)
    message = door.queue.update(message, body=b"1")
    door.faults.plan("drop_overlay", fault, times=100_000)
    began = door.clock.monotonic()
    assert b"2" == door.queue.update(message, body=b"2").body
    assert door.clock.monotonic() - began < settle.DROP_BODY_S  # the new lease runs: nobody waits


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("step", ["write_overlay", "update_bucket", "drop_overlay"])
def test_a_message_keeps_a_body_whatever_step_its_updater_dies_before(
    open_door: OpenDoor, step: str
) -> None:
    door, other = open_door(), open_door()
    (message,) = held(door)
    message = door.queue.update(message, body=b"1", visibility_timeout=30)
    door.faults.before(step, crash)
    with pytest.raises(Crash) if step != "drop_overlay" else nullcontext():
        door.queue.update(message, body=b"2", visibility_timeout=30)
    other.clock.advance(3_600)
    assert (b"2" if step == "drop_overlay" else b"1") == other.queue.get()[0].body


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
def test_a_message_keeps_its_body_whatever_becomes_of_an_updates_answer(
    door: Door, fault: Fault
) -> None:
    (message,) = held(door)
    message = door.queue.update(message, body=b"1")
    door.faults.plan("update_bucket", fault)
    message = door.queue.update(message, body=b"2")
    wait_until(lambda: set(door.value(0).revisions) == stored_revisions(door))
    door.queue.update(message, visibility_timeout=0)
    assert b"2" == door.queue.get()[0].body


# --- reading ------------------------------------------------------------------------------------


def pieces(door: Door, runs: Runs, *, is_look: bool = False) -> Iterator[Found]:
    row = door.value(0)
    planned = Planned(
        lane=door.lane.lane_id,
        bucket=FIRST,
        runs=runs,
        delivery_count=1,
        lease_id=UUID(int=1),
        revisions=row.revisions_of(runs),
        is_look=is_look,
    )
    return portal.iterate(fetch(door.store, door.lane.queue, door.lane.fixed, [planned]))


def reads_of_bodies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bodies each read from now on asks for."""
    asked: list[int] = []
    read = Overlays.read

    def noted(self: Overlays, bucket: BucketNo, some: list[tuple[int, int]]) -> dict[int, bytes]:
        asked.append(len(some))
        return read(self, bucket, some)

    monkeypatch.setattr(Overlays, "read", noted)
    return asked


@pytest.fixture
def updated(open_door: OpenDoor) -> Door:
    """One chunk of 200 messages; every second one has a body of 10 KB."""
    door = open_door(bucket_size=1_000)
    portal.run(seal.close(door.lane, door.put(*([b"m"] * 200))))
    for message in door.queue.get(200)[::2]:
        door.queue.update(message, body=message.message_id.encode() * 256)
    return door


@pytest.mark.invariant("I8")
def test_a_chunk_goes_out_in_pieces_where_updated_bodies_are_large(
    updated: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "BODIES_BYTES", 100_000)
    runs = Runs.span(3, 150)
    found = list(pieces(updated, runs))
    offsets = [at for one in found for at in (one.keep or Runs.span(0, 199)).offsets()]
    assert list(runs.offsets()) == offsets
    assert 4 <= len(found) < 40
    assert {at for at in runs.offsets() if at % 2 == 0} == {
        at for one in found for at in one.bodies
    }
    assert all(set(one.bodies) <= set((one.keep or runs).offsets()) for one in found)
    assert all(sum(map(len, one.bodies.values())) < 250_000 for one in found)


def test_so_many_bodies_are_asked_for_at_once_as_fit(
    updated: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "BODIES_BYTES", 30_000)
    asked = reads_of_bodies(monkeypatch)
    list(pieces(updated, Runs.span(0, 199)))
    assert 100 == sum(asked)
    assert 6 >= max(asked)


def test_bodies_of_single_rows_are_asked_for_side_by_side(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is a chunk of its own, and each body a read."""
    door = open_door(bucket_size=1_000)
    bucket = door.reserve()
    for at in range(100):
        door.write(bucket, at, b"m%d" % at)
    portal.run(seal.close(door.lane, bucket))
    for message in door.queue.get(100):
        door.queue.update(message, body=b"new " + message.body)
    asked = reads_of_bodies(monkeypatch)
    found = list(pieces(door, Runs.span(0, 99)))
    assert [{at: b"new m%d" % at} for at in range(100)] == [dict(one.bodies) for one in found]
    assert 100 == sum(asked)
    assert 10 > len(asked)


def test_what_was_updated_by_a_later_holder_is_a_lease_that_was_lost(updated: Door) -> None:
    """Not a corrupt row: the body that this reader asks for was replaced."""
    late = pieces(updated, Runs.span(0, 10))
    updated.clock.advance(3_600)
    (message,) = (one for one in updated.queue.get(200) if one.id == 0)
    updated.queue.update(message, body=b"a later delivery's")
    wait_until(lambda: set(updated.value(0).revisions) == stored_revisions(updated))
    with pytest.raises(LeaseLost, match="message 0 of bucket 0"):
        list(late)


def test_a_body_that_its_row_still_names_is_lost(updated: Door) -> None:
    offset, revision = updated.value(0).revisions[0]
    portal.run(updated.lane.overlays.drop_one(FIRST, offset, revision))
    with pytest.raises(RowCorrupt, match="message 0 of bucket 0"):
        list(pieces(updated, Runs.span(0, 10)))
    kept = [
        at for one in pieces(updated, Runs.span(0, 3), is_look=True) for at in one.positions or ()
    ]
    assert [1, 2, 3] == kept
