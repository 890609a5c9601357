"""Group the delayed messages of a bucket by due time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import Runs, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DELAY_STEP_US: Final = 1_000_000
"""The step to which due times are rounded up, so that groups stay few [R7]."""

DELAYED_GROUPS_LIMIT: Final = 4_096
"""The number of groups above which the step is doubled until they fit: no seal is refused for
its size [R7]."""

GROUPS_PER_COUNT: Final = 256
"""The most groups of each delivery count. Without it, rows with many counts would be late by
years: a wider step merges due times, never counts [T2]."""


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
