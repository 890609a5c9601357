"""Group the messages of a bucket by when they are due, and by when they expire. Pure.

A message with a time to live expires at a whole minute, rounded up. A queue's retention is one time
for a whole row, so it costs no more space than a number [U7].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cassieq_spark.model.ids import Runs, union

DELAY_STEP_US: Final = 1_000_000
"""The step to which due times are rounded up, so that groups stay few [R7]."""

DELAYED_GROUPS_LIMIT: Final = 4_096
"""The number of groups above which the step is doubled until they fit: no seal is refused for
its size [R7]."""

GROUPS_PER_COUNT: Final = 256
"""The most groups of each delivery count. Without it, rows with many counts would be late by
years: a wider step merges due times, never counts [T2]."""

MINUTE_US: Final = 60_000_000
"""The unit at whose multiples times to live end, so that groups stay few."""

GROUPS_BYTES: Final = 110 * 1024
"""The most bytes of the groups of a row at its seal. With fresh messages and a first lease, the
row's claims are below 128 KiB, whatever times to live its messages have [U8]."""

GROUP_BYTES: Final = 16
"""The most bytes of a group beside its set of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Messages that nobody gets before ``due_us``: they were put or released with a delay."""

    due_us: int
    runs: Runs
    deliveries: int = 0


def group_delays(due_us: Mapping[int, int], *, now_us: int) -> tuple[Delayed, ...]:
    """Group offsets by due time, without messages that are due already."""
    by_time: dict[int, list[int]] = {}
    for offset, due in due_us.items():
        if due > now_us:
            by_time.setdefault(due, []).append(offset)
    return merge_delayed(
        Delayed(due_us=due, runs=Runs.from_offsets(offsets)) for due, offsets in by_time.items()
    )


def merge_delayed(parts: Iterable[Delayed]) -> tuple[Delayed, ...]:
    """Merge into one group per delivery count and due time, rounded up to a step; soonest first.

    The step is widened until the groups fit a row, so no number of distinct delays can stop a seal
    [R7].
    """
    groups = list(parts)
    counts = len({group.deliveries for group in groups})
    limit = max(DELAYED_GROUPS_LIMIT, GROUPS_PER_COUNT * counts)
    step = DELAY_STEP_US
    while True:
        merged: dict[tuple[int, int], list[Runs]] = {}
        for group in groups:
            key = (-(-group.due_us // step) * step, group.deliveries)
            merged.setdefault(key, []).append(group.runs)
        if len(merged) <= limit:
            return tuple(
                Delayed(due_us=due, runs=union(runs), deliveries=deliveries)
                for (due, deliveries), runs in sorted(merged.items())
            )
        step *= 2


def in_one_order(groups: Sequence[Delayed]) -> list[Delayed]:
    """Merge due groups with the next ones as long as their ids say the same order as their times.

    Args:
        groups: By their times.
    """
    merged: list[list[Delayed]] = []
    for group in groups:
        last = merged[-1][-1] if merged else None
        if (
            last is not None
            and last.deliveries == group.deliveries
            and last.runs.last < group.runs.first
        ):
            merged[-1].append(group)
        else:
            merged.append([group])
    return [replace(some[0], runs=union(one.runs for one in some)) for some in merged]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiring:
    """Messages that nobody gets from ``expires_us`` on."""

    expires_us: int
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The lifetime of a bucket's messages.

    Attributes:
        expires_us: Offset to the end of the time to live, only for messages that have one.
        put_us: When the latest message was put.
        retention_us: The queue's retention; None: for ever.
    """

    expires_us: Mapping[int, int] = field(default_factory=dict)
    put_us: int = 0
    retention_us: int | None = None


FOR_EVER: Final = Life()


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a bucket's messages, in the form of its row.

    Attributes:
        delayed, expiring: Groups, soonest first.
        expires_us: When all that is left expires, by the queue's retention; None: never.
    """

    delayed: tuple[Delayed, ...] = ()
    expiring: tuple[Expiring, ...] = ()
    expires_us: int | None = None


def minute_after(time_us: int) -> int:
    """Return the whole minute that this time rounds up to."""
    return -(-time_us // MINUTE_US) * MINUTE_US


def kept_until(put_us: int, due_us: Iterable[int], retention_us: int | None) -> int | None:
    """Return when the last of some messages expires by the retention; None: never.

    It counts from the latest put and the latest due time: no message expires early, and earlier
    ones expire a little late [U7].

    Args:
        put_us: When the latest of them was put.
    """
    return None if retention_us is None else max([put_us, *due_us]) + retention_us


def times_of(due_us: Mapping[int, int], life: Life = FOR_EVER, *, now_us: int) -> Times:
    """Group the messages of a bucket that is about to be sealed.

    If there are times to live, steps are widened until the groups fit `GROUPS_BYTES`. Messages then
    fall due later, and expire later, never earlier [U8]. A message whose due time was rounded up
    lives as long from there on.

    Args:
        due_us: Offset to due time, for delayed messages only.
    """
    expires_us = life.expires_us
    groups = [(group.due_us, group.runs) for group in group_delays(due_us, now_us=now_us)]
    if expires_us:
        groups = _fitting(groups, DELAY_STEP_US, GROUPS_BYTES // 2)
    ends: dict[int, list[int]] = {}
    late = _late_by(groups, due_us, expires_us) if groups and expires_us else {}
    for offset, end_us in expires_us.items():
        ends.setdefault(minute_after(end_us + late.get(offset, 0)), []).append(offset)
    expiring = _fitting(
        [(end_us, Runs.from_offsets(offsets)) for end_us, offsets in sorted(ends.items())],
        MINUTE_US,
        GROUPS_BYTES - size_of(groups),
    )
    return Times(
        delayed=tuple(Delayed(due_us=due, runs=runs) for due, runs in groups),
        expiring=tuple(Expiring(expires_us=end, runs=runs) for end, runs in expiring),
        expires_us=kept_until(
            life.put_us, [*due_us.values(), *(due for due, _ in groups)], life.retention_us
        ),
    )


def size_of(groups: Iterable[tuple[int, Runs]]) -> int:
    """Return the most bytes that these groups take in a row."""
    return sum(len(runs.encode()) + GROUP_BYTES for _, runs in groups)


def _late_by(
    groups: Iterable[tuple[int, Runs]], due_us: Mapping[int, int], of: Mapping[int, int]
) -> dict[int, int]:
    """Return by how much the due time of each message was rounded up."""
    return {
        offset: due - due_us[offset]
        for due, runs in groups
        for offset in runs.offsets()
        if offset in of
    }


def _fitting(groups: list[tuple[int, Runs]], step: int, limit: int) -> list[tuple[int, Runs]]:
    """Merge groups by ever wider steps until they take at most ``limit`` bytes [U8]."""
    # Groups that are too many by their times alone need no look at their runs, which may be
    # 100,000.
    while (count := len(_rounded(groups, step))) > 1 and count * GROUP_BYTES > limit:
        step *= 2
    groups = _merged(groups, step)
    while len(groups) > 1 and (_at_least(groups) > limit or size_of(groups) > limit):
        step *= 2
        groups = _merged(groups, step)
    return groups


def _at_least(groups: Iterable[tuple[int, Runs]]) -> int:
    """Return a cheap lower bound of `size_of`: two bytes for each run, or a bitmap."""
    return sum(GROUP_BYTES + min(2 * len(runs.pairs), runs.last // 8) for _, runs in groups)


def _rounded(groups: Iterable[tuple[int, Runs]], step: int) -> set[int]:
    return {-(-time_us // step) for time_us, _ in groups}


def _merged(groups: Iterable[tuple[int, Runs]], step: int) -> list[tuple[int, Runs]]:
    merged: dict[int, list[Runs]] = {}
    for time_us, runs in groups:
        merged.setdefault(-(-time_us // step) * step, []).append(runs)
    return [
        (time_us, parts[0] if len(parts) == 1 else union(parts))
        for time_us, parts in sorted(merged.items())
    ]
