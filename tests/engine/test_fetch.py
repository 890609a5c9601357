"""Reading planned ids: exactly those, however chunks and reads are cut (I8)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from cassieq_spark.errors import DataLoss
from cassieq_spark.model.ids import Runs
from cassieq_spark.model.sizes import MAX_CHUNK_MESSAGES
from cassieq_spark.queue.fetch import OFFSETS_PER_READ, Planned, fetch
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.model.ids import BucketNo
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = pytest.mark.invariant("I8")

SIZE = 3 * OFFSETS_PER_READ
HOLE = range(15_000, 15_400)


def planned(door: Door, bucket: BucketNo, runs: Runs) -> Planned:
    lane = door.lane.lane_id
    return Planned(lane=lane, bucket=bucket, runs=runs, delivery_count=1, lease_id=UUID(int=1))


def offsets(door: Door, plan: list[Planned]) -> list[int]:
    """What came, in the order in which it came."""
    found: list[int] = []
    for part in portal.iterate(fetch(door.store, door.lane.queue, door.lane.fixed, plan)):
        span = Runs.span(part.chunk.first, part.chunk.first + part.chunk.count - 1)
        found += (span if part.keep is None else part.keep).offsets()
    return found


@pytest.fixture
def bucket(open_door: OpenDoor) -> tuple[Door, BucketNo]:
    """One bucket of chunks of every size, among them some across the border of two reads."""
    door = open_door(bucket_size=SIZE)
    number = door.reserve()
    draw = random.Random(20131)  # noqa: S311 - the same chunks in each run
    at = 0
    while at < SIZE:
        if at in HOLE:
            at = HOLE.stop
        count = draw.choice([1, 1, 40, 900, 2_500, MAX_CHUNK_MESSAGES])
        count = min(count, (HOLE.start if at < HOLE.start else SIZE) - at)
        door.write(number, at, *([b"x"] * count))
        at += count
    return door, number


def test_any_runs_give_their_ids_once_and_in_order(bucket: tuple[Door, BucketNo]) -> None:
    door, number = bucket
    whole = Runs.span(0, SIZE - 1) - Runs.span(HOLE.start, HOLE.stop - 1)
    draw = random.Random(7)  # noqa: S311 - as above
    for _ in range(25):
        low, high = sorted(draw.sample(range(SIZE), 2))
        gap = draw.randrange(low, high)
        runs = (Runs.span(low, high) - Runs.span(gap, gap + draw.randrange(3_000))) & whole
        if runs:
            assert list(runs.offsets()) == offsets(door, [planned(door, number, runs)])
    assert list(whole.offsets()) == offsets(door, [planned(door, number, whole)])


def test_an_id_that_is_not_there_is_data_loss_and_names_it(
    bucket: tuple[Door, BucketNo],
) -> None:
    door, number = bucket
    runs = Runs.span(HOLE.start - 10, HOLE.start + 1)
    with pytest.raises(DataLoss, match=rf"2 of 12 .*first offset {HOLE.start}"):
        offsets(door, [planned(door, number, runs)])


@pytest.mark.usefixtures("still_time")
def test_a_read_that_begins_with_a_chunk_asks_once(bucket: tuple[Door, BucketNo]) -> None:
    """Only one that begins inside a chunk looks back for it."""
    door, number = bucket
    before = door.counts["read_messages"]
    offsets(door, [planned(door, number, Runs.span(HOLE.stop, HOLE.stop + 5))])
    assert 1 == door.counts["read_messages"] - before
