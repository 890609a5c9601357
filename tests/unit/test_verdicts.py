"""Receipts and verdicts of many rows, read together: what tasks and the driver make of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import OptionInvalid, ReceiptInvalid
from cassieq_spark.model.ids import BucketNo, LaneId, Place, Runs
from cassieq_spark.model.lanes import Fixed
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.model.receipt import Receipt, prefix
from cassieq_spark.queue.lane import Lane
from cassieq_spark.spark.columns import receipt_texts
from cassieq_spark.spark.jobs import settle_frame as verdicts
from cassieq_spark.spark.jobs.settle_frame import Gathered, gather, put_together

LANE_ID = LaneId(UUID(int=7 << 90))
OTHER_LANE = LaneId(UUID(int=9 << 90))
LANE = cast(
    "Lane",
    SimpleNamespace(
        lane_id=LANE_ID,
        lanes=(LANE_ID, OTHER_LANE),
        fixed=Fixed(ids=(LANE_ID, OTHER_LANE), shards=2),
        bucket_size=1_000,
        queue="orders",
    ),
)
ONE, TWO = UUID(int=1), UUID(int=1 << 127)


def place(bucket: int, lane: LaneId = LANE_ID) -> Place:
    return Place(lane, BucketNo(bucket))


def receipt(
    offset: int, *, bucket: int = 3, lease: UUID = ONE, lane: LaneId = LANE_ID, last: int = -1
) -> str:
    return Receipt(
        lane=lane,
        bucket=BucketNo(bucket),
        lease_id=lease,
        first=offset,
        last=max(offset, last),
    ).encode()


def read(*rows: tuple[str | None, str | None], batches: int = 1) -> Gathered:
    """As tasks and driver do, the rows in so many record batches."""
    parts = []
    for at in range(batches):
        some = rows[at::batches]
        receipts = pa.array([one for one, _ in some], pa.string())
        verdicts = pa.array([one for _, one in some], pa.string())
        packed = gather(receipts, verdicts)
        assert len(some) == len(packed)
        parts += [part for part in packed.to_pylist() if part is not None]
    return put_together(LANE, parts)


def test_rows_become_runs_by_bucket_lease_and_ruling_over_all_record_batches() -> None:
    rows = [(receipt(at), "ack") for at in (5, 4, 9)]
    rows += [(receipt(at, lease=TWO), "reject") for at in (1, 0)]
    rows += [(receipt(6, bucket=4), "release"), (receipt(4), "ack")]

    for batches in (1, 3, 7):
        gathered = read(*rows, (receipt(8), None), (None, None), batches=batches)
        assert (
            Gathered(
                by_bucket={
                    place(3): {
                        ONE: {verdicts.ACK: Runs.of((4, 5), (9, 9))},
                        TWO: {verdicts.REJECT: Runs.span(0, 1)},
                    },
                    place(4): {ONE: {verdicts.RELEASE: Runs.span(6, 6)}},
                },
                left=2,
            )
            == gathered
        )
        assert gathered.rejects


def test_u6_buckets_of_one_number_in_two_lanes_are_two() -> None:
    gathered = read((receipt(5), "ack"), (receipt(5, lane=OTHER_LANE), "reject"))

    assert {
        place(3): {ONE: {verdicts.ACK: Runs.span(5, 5)}},
        place(3, OTHER_LANE): {ONE: {verdicts.REJECT: Runs.span(5, 5)}},
    } == gathered.by_bucket


def test_no_rows_and_no_verdicts_say_nothing() -> None:
    assert Gathered() == read()
    assert Gathered(left=1) == read((receipt(1), None))
    assert not read((receipt(1), "ack")).rejects


def test_a_receipt_of_several_messages_is_for_all_of_them() -> None:
    gathered = read((receipt(2, last=6), "ack"), (receipt(4), "ack"), (receipt(8), "ack"))

    assert {place(3): {ONE: {verdicts.ACK: Runs.of((2, 6), (8, 8))}}} == gathered.by_bucket


@given(
    places=st.lists(
        st.tuples(
            st.sampled_from((LANE_ID, OTHER_LANE)),
            st.integers(0, DELETED - 1),
            st.sampled_from((ONE, TWO)),
            st.integers(0, 999),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_receipts_are_read_as_they_are_one_by_one(
    places: list[tuple[LaneId, int, UUID, int]],
) -> None:
    gathered = read(
        *((receipt(at, bucket=no, lease=by, lane=lane), "ack") for lane, no, by, at in places)
    )

    found = {
        (at, lease, offset)
        for at, by_lease in gathered.by_bucket.items()
        for lease, by_verdict in by_lease.items()
        for offset in by_verdict[verdicts.ACK].offsets()
    }
    assert {(place(no, lane), by, at) for lane, no, by, at in places} == found


def test_texts_that_share_memory_with_others_are_read_from_their_own_start() -> None:
    texts = receipt_texts(prefix(LANE_ID, BucketNo(3), ONE), pa.array(range(20)).to_numpy())
    said = pa.array(["ack"] * 5, pa.large_string())

    packed = gather(texts.slice(10, 5).cast(pa.large_string()), said)

    gathered = put_together(LANE, [packed[0].as_py()])
    assert {ONE: {verdicts.ACK: Runs.span(10, 14)}} == gathered.by_bucket[place(3)]


@pytest.mark.parametrize("verdict", ["acked", "ACK", "", " ack", "true"])
def test_a_verdict_that_is_none_is_refused_by_name(verdict: str) -> None:
    with pytest.raises(OptionInvalid) as refused:
        read((receipt(1), "ack"), (receipt(2), verdict))

    assert f"{verdict!r}, allowed: 'ack', 'release', 'reject' or null" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (receipt(1)[:-1], "has 70"),
        (receipt(1) + "A", "has 72"),
        ("", "has 0"),
        ("é" * 71, "a receipt has"),
        ("*" * 71, "only letters"),
        ("C" + receipt(1)[1:], "has version 9"),
        (receipt(1)[:40] + ("A" if receipt(1)[40] != "A" else "B") + receipt(1)[41:], "checksum"),
        (receipt(1)[:-6] + "AAAAAA", "checksum"),
        (receipt(1, lane=LaneId(UUID(int=8))), "of another queue"),
        (receipt(1_000), "never existed"),
        (receipt((1 << 32) - 1), "never existed"),
        (receipt(1, bucket=DELETED), "never existed"),
        (receipt(5, last=1_000), "never existed"),
    ],
)
def test_a_receipt_that_is_none_of_this_queue_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ReceiptInvalid, match=why):
        read((receipt(2), "ack"), (text, "ack"), (receipt(3), "ack"))


@pytest.mark.parametrize("last", [-1, 7], ids=["one message", "several"])
def test_a_receipt_whose_unused_bits_are_altered_is_refused(last: int) -> None:
    good = receipt(5, last=last)
    altered = good[:-1] + chr(ord(good[-1]) + 1)
    with pytest.raises(ReceiptInvalid, match="nothing was changed"):
        read((good, "ack"), (altered, "ack"))


def test_a_verdict_on_nothing_is_refused() -> None:
    with pytest.raises(ReceiptInvalid, match="without a receipt"):
        read((receipt(2), "ack"), (None, "release"))


def test_two_verdicts_on_one_message_are_refused_by_its_name_and_theirs() -> None:
    """Else the order of tasks would decide."""
    rows = [(receipt(at), "ack") for at in range(9)]
    with pytest.raises(OptionInvalid) as refused:
        read(*rows, (receipt(7), "reject"), batches=4)

    assert "message 3007 of queue 'orders' has two verdicts" in str(refused.value)
    assert receipt(7) in str(refused.value)
    # Under two deliveries it may have two: one of them is stale.
    assert read(*rows, (receipt(7, lease=TWO), "reject")).rejects
