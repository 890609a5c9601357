"""A driver opens all of a batch's buckets: its own, above the repair pointer, or replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import QueueDeleted, SinkFenced
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.queue.sink.writer import LARGEST_BLOCK, open_buckets, prepare
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.queue.sink.writer import OpenBucket
    from tests.fixtures.queues import Door, OpenDoor


def opened(door: Door, number: int) -> list[OpenBucket]:
    door.task(door.identity(), 0)  # the sink row comes before a bucket that names it
    [found] = portal.run(open_buckets([(door.lane, number)], sink_id=door.queue.name, epoch=1))
    return found


def test_each_is_writing_and_names_its_transaction_and_its_blocks_end(door: Door) -> None:
    found = opened(door, 3)
    assert [0, 1, 2] == [one.bucket for one in found]
    for one in found:
        row = door.value(one.bucket)
        assert Status.WRITING is row.status
        assert row.sink is not None
        assert (door.queue.name, 1, 3) == (row.sink.sink_id, row.sink.epoch, row.sink.block_end)


def test_none_are_opened_for_an_empty_batch(door: Door) -> None:
    assert [] == opened(door, 0)
    monoton = portal.run(door.lane.monotons.read())
    assert monoton is not None
    assert 0 == monoton.value.next_id


@pytest.mark.usefixtures("still_time")
def test_r11_no_block_is_larger_than_its_rows_are_soon_there(door: Door) -> None:
    """All rows of a block are inserted before the next block is reserved."""
    reserved = []
    door.faults.before("reserve", lambda: reserved.append(door.counts["insert_bucket"]))
    found = opened(door, LARGEST_BLOCK + 2)
    assert list(range(LARGEST_BLOCK + 2)) == [one.bucket for one in found]
    assert 2 == door.counts["reserve"]
    ends = {one.sink.block_end for one in found}
    assert {LARGEST_BLOCK, LARGEST_BLOCK + 2} == ends


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I7")
def test_buckets_of_all_lanes_are_opened_side_by_side(open_door: OpenDoor) -> None:
    """Lanes that wait for one another would open no bucket here: all meet before one goes on."""
    door = open_door(shards=4)
    door.task(door.identity(), 0)
    second = door.lane.all[1]
    portal.run(reserve(second, 1))
    portal.run(second.buckets.insert(BucketNo(2), rules.sealing(now_us=second.clock.now_us())))
    before = door.counts["reserve"]
    for statement in ("reserve", "insert_bucket"):
        door.faults.park(statement, 4)

    wanted = [(lane, 1 + at % 2) for at, lane in enumerate(door.lane.all)]
    found = portal.run(open_buckets(wanted, sink_id=door.queue.name, epoch=1))

    assert [[0], [1, 3], [0], [0, 1]] == [[one.bucket for one in some] for some in found]
    assert 5 == door.counts["reserve"] - before


def test_r11_blocks_of_all_lanes_together_are_no_larger_than_one(open_door: OpenDoor) -> None:
    door = open_door(shards=4)
    door.task(door.identity(), 0)
    found = portal.run(
        open_buckets([(lane, 20) for lane in door.lane.all], sink_id=door.queue.name, epoch=1)
    )

    assert 4 * [20] == [len(some) for some in found]
    assert 4 * [{16, 20}] == [{one.sink.block_end for one in some} for some in found]


def test_r11_buckets_that_were_closed_before_are_replaced(door: Door) -> None:
    for bucket in (1, 3):
        portal.run(
            door.lane.buckets.insert(
                BucketNo(bucket), rules.sealing(now_us=door.lane.clock.now_us())
            )
        )
    assert [0, 2, 4] == [one.bucket for one in opened(door, 3)]


@pytest.mark.usefixtures("still_time")
def test_p5_the_repair_pointer_is_read_after_the_rows_and_once_a_block(door: Door) -> None:
    """The block was closed as gaps and dropped while its rows were on their way."""
    door.task(door.identity(), 0)
    read_before = door.counts["read_pointers"]
    door.faults.before(
        "read_pointers",
        lambda: portal.run(door.lane.pointers.advance(Pointer.REPAIR, 2)),
    )
    [found] = portal.run(open_buckets([(door.lane, 3)], sink_id=door.queue.name, epoch=1))
    assert [2, 3, 4] == [one.bucket for one in found]
    assert 2 == door.counts["read_pointers"] - read_before


def test_p8_a_bucket_closed_under_its_writer_fences_the_batch(door: Door) -> None:
    [one] = opened(door, 1)
    one.count = 1
    portal.run(
        door.lane.change_bucket(
            one.bucket, lambda row, *_: rules.voided(row, now_us=row.changed_us)
        )
    )
    with pytest.raises(SinkFenced, match="was closed while it was written"):
        portal.run(prepare(door.lane, one))


def test_a_queue_that_is_gone_is_told_as_such(door: Door) -> None:
    [one] = opened(door, 1)
    one.count = 1
    door.client.delete_queue(door.queue.name)
    with pytest.raises(QueueDeleted):
        portal.run(prepare(door.lane, one))
