"""Rows are sorted into lanes by priority and key; they keep their order there, none is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model.bucket_plan import PackedChunk, assign
from cassieq_spark.model.lanes import due_lane, shard_of
from cassieq_spark.options import QueueSettings
from cassieq_spark.spark.lane_packer import LanePacker, Sorting
from cassieq_spark.store import chunk as chunks

HOUR_US = 3_600_000_000
TIMES = {"schedule_after_s": 900, "schedule_period_s": HOUR_US / 1e6}
SORTING = Sorting(QueueSettings(priorities=3, shards=4, **TIMES), 6)
ONE = Sorting(QueueSettings(**TIMES), 0)

rows = st.lists(
    st.tuples(
        st.none() | st.integers(0, 2),
        st.none() | st.sampled_from(["a", "b", "é", " ", "k" * 1_024]),
    ),
    max_size=60,
)


class Taken:
    """The bodies of one lane, in the order of its chunks."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.due_us: list[int] = []
        self.closed = 0

    def capacity(self) -> int:
        return 10

    def close(self) -> None:
        self.closed += 1

    def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:
        self.due_us += due_us or [0] * count
        found = [row.body for row in _rows(payload)]
        assert count == len(found)
        self.bodies += found


def _rows(payload: bytes) -> list[chunks.Row]:
    return [row for _, row in chunks.rows(chunks.decode(payload), None)]


def batch(some: list[tuple[int | None, str | None]], first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"%d" % (first + at) for at in range(len(some))], pa.binary()),
            "priority": pa.array([priority for priority, _ in some], pa.int32()),
            "key": pa.array([key for _, key in some], pa.string()),
        },
    )


def packed(
    batches: list[pa.RecordBatch], sorting: Sorting = SORTING, now_us: int = 0
) -> dict[int, list[bytes]]:
    taken: defaultdict[int, Taken] = defaultdict(Taken)
    packer = LanePacker(
        taken.__getitem__, sorting, lambda: now_us, chunk_messages=7, chunk_bytes=1 << 20
    )
    for one in batches:
        packer.add(one)
    packer.flush()
    return {lane: one.bodies for lane, one in taken.items()}


@given(rows, rows)
def test_each_row_is_in_its_lane_once_and_in_order(
    some: list[tuple[int | None, str | None]], more: list[tuple[int | None, str | None]]
) -> None:
    found = packed([batch(some), batch(more, len(some))])

    expected: defaultdict[int, list[bytes]] = defaultdict(list)
    for at, (priority, key) in enumerate([*some, *more]):
        shard = 6 % 4 if key is None else shard_of(key, 4)
        expected[(priority or 0) * 4 + shard].append(b"%d" % at)
    assert expected == {lane: bodies for lane, bodies in found.items() if bodies}


def test_without_priorities_and_keys_all_rows_of_a_partition_are_in_one_shard() -> None:
    plain = batch([(None, None)] * 20).select(["body"])

    assert {2: [b"%d" % at for at in range(20)]} == packed([plain])
    assert {0: [b"%d" % at for at in range(20)]} == packed([plain], ONE)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((3, None), "row 21 of its input partition has priority 3, allowed: 0 to 2"),
        ((-1, None), "row 21 of its input partition has priority -1"),
        ((None, "k" * 1_025), "row 21 of its input partition has a key of 1025 bytes"),
        ((None, "é" * 513), "row 21 of its input partition has a key of 1026 bytes"),
        ((None, ""), "row 21 of its input partition has a key of 0 bytes, allowed: 1 to 1024"),
    ],
)
def test_a_wrong_row_is_named_by_its_position(
    row: tuple[int | None, str | None], says: str
) -> None:
    with pytest.raises(BodyInvalid, match=says):
        packed([batch([(0, "a")] * 20), batch([(0, "a"), row], 20)])


def test_one_lane_refuses_a_priority_that_it_does_not_have() -> None:
    with pytest.raises(BodyInvalid, match=r"priority 1, allowed: 0 to 0"):
        packed([batch([(1, None)])], ONE)


far = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.integers(-HOUR_US, 30 * HOUR_US)), max_size=60
)


@given(far, far)
def test_each_row_is_in_the_lane_that_a_put_would_take(
    some: list[tuple[int, int | None]], more: list[tuple[int, int | None]]
) -> None:
    """As `model.lanes.due_lane` decides for one message."""
    now_us = 500_000 * HOUR_US + 1_700_000_000
    expected: defaultdict[int, list[bytes]] = defaultdict(list)
    batches = []
    for rows_ in (some, more):
        first = sum(one.num_rows for one in batches)
        for at, (priority, in_us) in enumerate(rows_, first):
            due_us = 0 if in_us is None else now_us + in_us
            lane = due_lane(
                due_us, priority, now_us=now_us, after_us=900_000_000, period_us=HOUR_US
            )
            number = (
                priority * 4 + 6 % 4
                if lane is None
                else SORTING.fixed + lane.period * 3 + lane.priority
            )
            assert lane == SORTING.due_lane(number)
            expected[number].append(b"%d" % at)
        due = [None if in_us is None else now_us + in_us for _, in_us in rows_]
        plain = batch([(priority, None) for priority, _ in rows_], first)
        batches.append(plain.append_column("due_at", pa.array(due, pa.timestamp("us", "UTC"))))

    found = packed(batches, now_us=now_us)
    assert expected == {lane: bodies for lane, bodies in found.items() if bodies}


def test_columns_of_other_types_are_refused() -> None:
    wrong = pa.RecordBatch.from_pydict({"body": [b"m"], "priority": [1.5]})
    with pytest.raises(OptionInvalid, match="column 'priority' is double, allowed: an integer"):
        packed([wrong])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=40))
def test_no_bucket_has_chunks_of_two_lanes(some: list[tuple[int, int]]) -> None:
    given_ = [
        PackedChunk(partition=0, number=at, lane=lane, count=count, size_bytes=1)
        for at, (lane, count) in enumerate(some)
    ]
    plans = assign(given_, bucket_size=20, bucket_bytes=1_000)

    assert all({plan.lane} == {chunk.lane for chunk in plan.chunks} for plan in plans)
    assert [plan.lane for plan in plans] == sorted(plan.lane for plan in plans)
    for lane in range(4):
        placed = [chunk for plan in plans if plan.lane == lane for chunk in plan.chunks]
        assert [chunk for chunk in given_ if chunk.lane == lane] == placed
