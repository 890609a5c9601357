"""When a consumer that waits looks again."""

from __future__ import annotations

from cassieq_spark.entropy import system
from cassieq_spark.queue.get.getter import (
    LONGEST_PAUSE_S,
    PAUSES_S,
    QUICK_FOR_S,
    QUICK_PAUSE_S,
    READS_A_LOOK,
    READS_PER_S,
    Pace,
)


def idle(looks: int, *, lanes: int = 1) -> Pace:
    """The pace of a consumer that has never found anything in so many looks."""
    pace = Pace(system)
    for _ in range(looks):
        pace.note(0.0, has_found=False, lanes=lanes)
    return pace


def test_there_is_no_pause_before_the_first_look_and_after_one_that_found_something() -> None:
    pace = Pace(system)
    assert 0 == pace.pause_s(0.0, lanes=1)
    pace = idle(3)
    pace.note(1.0, has_found=True, lanes=1)
    assert 0 == pace.pause_s(1.0, lanes=1)


def test_an_idle_consumer_looks_less_and_less_often() -> None:
    for looks, longest in enumerate((*PAUSES_S, PAUSES_S[-1]), 1):
        pauses = [idle(looks).pause_s(0.0, lanes=1) for _ in range(200)]
        assert longest / 4 <= min(pauses)
        assert max(pauses) <= longest


def test_while_messages_come_one_after_the_other_looks_are_quick() -> None:
    pace = idle(9)
    pace.note(10.0, has_found=True, lanes=1)
    at = 10.0
    while at < 10.0 + QUICK_FOR_S:
        pace.note(at, has_found=False, lanes=1)
        pause_s = pace.pause_s(at, lanes=1)
        assert QUICK_PAUSE_S / 4 <= pause_s <= QUICK_PAUSE_S
        at += pause_s
    # Then the pauses begin with the shortest.
    pace.note(at, has_found=False, lanes=1)
    assert PAUSES_S[0] / 4 <= pace.pause_s(at, lanes=1)
    for _ in range(9):
        pace.note(at, has_found=False, lanes=1)
    assert PAUSES_S[-1] / 4 <= pace.pause_s(at, lanes=1)


def test_many_lanes_are_looked_at_less_often_and_never_quickly() -> None:
    pace = idle(9, lanes=64)
    assert min(LONGEST_PAUSE_S, READS_A_LOOK * 64 / READS_PER_S) == pace.pause_s(0.0, lanes=64)
    pace.note(10.0, has_found=True, lanes=64)
    for looks in range(1, 9):
        pace.note(10.1, has_found=False, lanes=64)
        longest = PAUSES_S[min(looks, len(PAUSES_S)) - 1]
        assert longest / 4 <= pace.pause_s(10.1, lanes=64)
