"""Keep dead sets: messages of a bucket to move to another queue (ADR 19). Pure.

A message that dies goes into the *open* set of its bucket, which nobody moves. Repair closes that
set by a CAS before it moves it. A *closed* set is never extended or merged, because a mover may
have it [R14]. So a row has few sets, and a pass few moves, however many CASes messages died by
[T2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from cassieq_spark.model.ids import EMPTY, QueueName, Runs, union
from cassieq_spark.model.row_limits import (
    CLOSED_SETS,
    FURTHER_REASONS,
    REASONS_BYTES,
    REDRIVEN_SETS,
    TIMES_OF_DEATH,
)

OUT_OF_DELIVERIES: Final = "max_deliveries"
"""The reason of a death without a reject."""

REDRIVE: Final = "redrive"
"""The reason of messages in a dead set that have not died: a redrive sends them on (ADR 16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSet:
    """Messages of a dead set that died for one reason, after equally many deliveries.

    All entries of one id are one set. One transaction, which has its id, moves it.

    Attributes:
        deliveries: The delivery count of each message in it.
        died_us: Cluster time of the CAS by which they died, the last if by several.
        earlier: (time, messages) of those that died by earlier CASes, ascending. A release that
            does not know this field leaves it out: then ``died_us`` stands for all.
        reason: The words of the consumer that rejected them, or that they were out of deliveries.
        target: The queue that a redrive sends them to; None: the queue's dead-letter queue.
        is_open: Whether more may be put into the set: no mover has it, or may take it.
    """

    set_id: UUID
    runs: Runs
    deliveries: int = 0
    died_us: int = 0
    reason: str = OUT_OF_DELIVERIES
    target: QueueName | None = None
    is_open: bool = False
    earlier: tuple[tuple[int, Runs], ...] = ()

    def deaths(self) -> Iterator[tuple[int, Runs]]:
        """Yield (time, messages) of each death, ascending."""
        yield from self.earlier
        yield self.died_us, self.runs - union(runs for _, runs in self.earlier)


Dead = tuple[DeadSet, ...]


def add_dead(
    dead: Dead,
    died: Iterable[tuple[int, Runs]],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    now_us: int,
) -> Dead:
    """Add dead messages to the open set, or to a new one if there is none.

    Args:
        died: (deliveries, messages).
    """
    others = tuple(part for part in dead if not part.is_open)
    entries = {(part.reason, part.deliveries): part for part in dead if part.is_open}
    set_id = next(iter(entries.values())).set_id if entries else new_id()
    reason = _fitting(dead, reason)
    for deliveries, runs in died:
        new = DeadSet(
            set_id=set_id,
            runs=runs,
            deliveries=deliveries,
            died_us=now_us,
            reason=reason,
            is_open=True,
        )
        before = entries.get((reason, deliveries))
        entries[reason, deliveries] = new if before is None else _joined(before, new)
    return (*others, *_few_times([*entries.values()]))


def _joined(before: DeadSet, new: DeadSet) -> DeadSet:
    """Join two entries. The clocks of two clients differ: the new one may be the earlier."""
    return _at_times(replace(new, runs=before.runs | new.runs), [*before.deaths(), *new.deaths()])


def _at_times(entry: DeadSet, deaths: Iterable[tuple[int, Runs]]) -> DeadSet:
    by_time: dict[int, Runs] = {}
    for us, runs in deaths:
        by_time[us] = by_time.get(us, EMPTY) | runs
    *earlier, (last_us, _) = sorted(by_time.items())
    return replace(entry, died_us=last_us, earlier=tuple(earlier))


def _few_times(entries: list[DeadSet]) -> list[DeadSet]:
    """Round times up by the smallest step that leaves few enough of them for a row [T2]."""
    times_us = [us for part in entries for us, _ in part.deaths()]
    step_us = (max(times_us) - min(times_us)) // TIMES_OF_DEATH
    while sum(len(part.earlier) for part in entries) > TIMES_OF_DEATH:
        step_us = 1 << step_us.bit_length()
        entries = [_rounded_up(part, step_us) for part in entries]
    return entries


def _rounded_up(entry: DeadSet, step_us: int) -> DeadSet:
    deaths = [(-(-us // step_us) * step_us, runs) for us, runs in entry.deaths()]
    return _at_times(entry, [(min(us, entry.died_us), runs) for us, runs in deaths])


def may_close(dead: Dead) -> bool:
    """Whether there is an open set, and not too many closed ones already."""
    waiting = {part.set_id for part in dead if not part.is_open and part.target is None}
    return len(waiting) < CLOSED_SETS and any(part.is_open for part in dead)


def closed(dead: Dead) -> Dead:
    """Close the open set: each set may be moved then, and takes in no more messages [R14]."""
    return tuple(replace(part, is_open=False) if part.is_open else part for part in dead)


def movable(dead: Dead) -> list[Dead]:
    """Return the closed sets, each with all of its entries."""
    sets: dict[UUID, list[DeadSet]] = {}
    for part in dead:
        if not part.is_open:
            sets.setdefault(part.set_id, []).append(part)
    return [tuple(parts) for parts in sets.values()]


def may_redrive(dead: Dead, more: int) -> bool:
    """Whether the row has room for ``more`` sets with a target of their own."""
    return len({part.set_id for part in dead if part.target is not None}) + more <= REDRIVEN_SETS


def runs_of(dead: Iterable[DeadSet], set_id: UUID) -> Runs:
    """Return the messages of one set."""
    return union(part.runs for part in dead if part.set_id == set_id)


def _fitting(dead: Dead, reason: str) -> str:
    """Return the reason, if the row has it already or has room for it; else a general one [T2]."""
    known = {part.reason for part in dead}
    if reason in known or _bytes_of({*known, reason}) <= REASONS_BYTES:
        return reason
    return FURTHER_REASONS


def _bytes_of(words: Iterable[str]) -> int:
    return sum(len(word.encode()) for word in words)
