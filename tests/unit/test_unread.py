"""`Unread`: what a client keeps of what it has read."""

from __future__ import annotations

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.ids import BucketNo, LaneId, Place, Runs
from cassieq_spark.store.tables import messages as unread
from cassieq_spark.store.tables.messages import ROW_BYTES, UNREAD_FOR_S, ChunkRow, Unread
from cassieq_spark.testing import ManualClock

SIZE = 1_000
"""Bytes of a chunk of these tests, in memory."""


CLOCK = ManualClock()


@pytest.fixture
def kept() -> Unread:
    return Unread(clock=lambda: CLOCK)


def chunk(first: int, count: int = 10) -> ChunkRow:
    payload = bytes(SIZE - ROW_BYTES)
    return ChunkRow(first=first, count=count, payload=payload, enqueued_us=1)


def place(bucket: int = 0) -> Place:
    return Place(LANE, BucketNo(bucket))


LANE = LaneId(new_uuid())


def firsts(kept: Unread, first: int, last: int, bucket: int = 0) -> list[int] | None:
    found = kept.take(place(bucket), Runs.span(first, last))
    return None if found is None else [one.first for one in found]


def test_what_is_kept_is_found_by_any_of_its_offsets(kept: Unread) -> None:
    kept.keep(place(), [chunk(0), chunk(10), chunk(20)])
    assert [10] == firsts(kept, 12, 14)
    assert [0, 10] == firsts(kept, 5, 15)
    assert [10, 20] == firsts(kept, 18, 22)


@pytest.mark.parametrize("asked", [(5, 30), (30, 31), (9, 10), (20, 20)])
def test_all_of_what_is_asked_for_is_here_or_nothing(kept: Unread, asked: tuple[int, int]) -> None:
    kept.keep(place(), [chunk(0), chunk(21)])
    assert None is firsts(kept, *asked)
    assert None is firsts(kept, 0, 0, bucket=1)


def test_runs_with_gaps_need_only_their_own_chunks(kept: Unread) -> None:
    kept.keep(place(), [chunk(0), chunk(50)])
    found = kept.take(place(), Runs.of((3, 5), (52, 53)))
    assert found is not None
    assert [0, 50] == [one.first for one in found]


def test_a_chunk_is_forgotten_when_its_last_message_is_asked_for(kept: Unread) -> None:
    kept.keep(place(), [chunk(0), chunk(10)])
    assert [0] == firsts(kept, 0, 8)
    assert [0, 10] == firsts(kept, 9, 12)
    assert None is firsts(kept, 0, 0)
    assert [10] == firsts(kept, 13, 19)
    assert None is firsts(kept, 19, 19)


def test_what_is_too_much_is_left_out_from_the_end(
    kept: Unread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 2 * SIZE)
    kept.keep(place(), [chunk(0), chunk(10), chunk(20)])
    assert [0, 10] == firsts(kept, 5, 12)
    assert None is firsts(kept, 20, 21)


def test_the_oldest_bucket_makes_room(kept: Unread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 3 * SIZE)
    for bucket in range(2):
        kept.keep(place(bucket), [chunk(0)])
    kept.keep(place(0), [chunk(10)])
    kept.keep(place(2), [chunk(0)])
    assert [[0, 10], None, [0]] == [
        firsts(kept, 8, 11),
        firsts(kept, 0, 1, bucket=1),
        firsts(kept, 0, 1, bucket=2),
    ]


def test_what_was_asked_for_in_vain_is_forgotten_too(kept: Unread) -> None:
    """It is read anew with the rest."""
    kept.keep(place(), [chunk(0), chunk(20)])
    assert None is firsts(kept, 5, 15)
    assert None is firsts(kept, 8, 9)
    assert [20] == firsts(kept, 20, 25)


def test_what_is_old_is_forgotten_when_something_else_is_kept(kept: Unread) -> None:
    kept.keep(place(), [chunk(0)])
    CLOCK.advance(UNREAD_FOR_S)
    kept.keep(place(1), [chunk(0)])
    assert [None, [0]] == [firsts(kept, 0, 1, bucket=bucket) for bucket in range(2)]


def test_a_large_bucket_is_used_up_in_any_order(kept: Unread) -> None:
    kept.keep(place(), (chunk(first, 1) for first in range(3_000)))
    for first in range(1, 3_000, 2):
        assert [first] == firsts(kept, first, first)
    assert None is firsts(kept, 0, 2)
    for first in range(2_998, 3, -2):
        assert [first] == firsts(kept, first, first)


def test_a_chunk_that_is_kept_again_counts_once(
    kept: Unread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 2 * SIZE)
    for _ in range(5):
        kept.keep(place(), [chunk(0)])
    kept.keep(place(1), [chunk(0)])
    assert [[0], [0]] == [firsts(kept, 0, 1, bucket=bucket) for bucket in range(2)]
