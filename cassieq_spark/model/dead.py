"""Keep dead sets: messages of a bucket to be moved to another queue (design 3, ADR 19). Pure.

A message that dies goes into the *open* set of its bucket, which nobody moves. Repair closes that
set by a CAS before it moves it; a *closed* set is never extended or merged, for a mover may have it
[R14]. So a row has few sets, and a pass few moves, however many CASes messages died by [T2].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import Runs, union
from cassieq_spark.model.row_limits import (
    CLOSED_SETS,
    FURTHER_REASONS,
    REASONS_BYTES,
    REDRIVEN_SETS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from cassieq_spark.model.ids import QueueName

OUT_OF_DELIVERIES: Final = "max_deliveries"
"""Why a message died that nobody has rejected."""

REDRIVE: Final = "redrive"
"""Why a message is in a dead set without having died: it was sent on to another queue (ADR 16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSet:
    """Messages of a dead set that died for one reason after as many deliveries.

    All entries of one id are one set: one transaction, which has its id, moves it.

    Attributes:
        deliveries: The count of each message in it.
        died_us: Cluster time of the CAS by which they died, the last if by several.
        reason: The words of whoever rejected them, or that they were out of deliveries.
        target: The queue that a redrive sends them to; None: the queue's dead-letter queue.
        is_open: Whether more may be put into the set: no mover has it, nor may take it.
    """

    set_id: UUID
    runs: Runs
    deliveries: int = 0
    died_us: int = 0
    reason: str = OUT_OF_DELIVERIES
    target: QueueName | None = None
    is_open: bool = False


Dead = tuple[DeadSet, ...]


def add_dead(
    dead: Dead,
    died: Iterable[tuple[int, Runs]],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    now_us: int,
) -> Dead:
    """Add dead messages to the open set, which is a fresh one if there is none.

    Args:
        died: (deliveries, messages).
    """
    others = tuple(part for part in dead if not part.is_open)
    entries = {(part.reason, part.deliveries): part for part in dead if part.is_open}
    set_id = next(iter(entries.values())).set_id if entries else new_id()
    reason = _fitting(dead, reason)
    for deliveries, runs in died:
        before = entries.get((reason, deliveries))
        entries[reason, deliveries] = DeadSet(
            set_id=set_id,
            runs=runs if before is None else before.runs | runs,
            deliveries=deliveries,
            died_us=now_us,
            reason=reason,
            is_open=True,
        )
    return (*others, *entries.values())


def may_close(dead: Dead) -> bool:
    """Whether there is an open set, and not too many closed ones already."""
    waiting = {part.set_id for part in dead if not part.is_open and part.target is None}
    return len(waiting) < CLOSED_SETS and any(part.is_open for part in dead)


def closed(dead: Dead) -> Dead:
    """Close the open set: each set may be moved, and nothing is put into it any more [R14]."""
    return tuple(replace(part, is_open=False) if part.is_open else part for part in dead)


def movable(dead: Dead) -> list[Dead]:
    """The closed sets, each with all of its entries."""
    sets: dict[UUID, list[DeadSet]] = {}
    for part in dead:
        if not part.is_open:
            sets.setdefault(part.set_id, []).append(part)
    return [tuple(parts) for parts in sets.values()]


def may_redrive(dead: Dead, more: int) -> bool:
    """Whether the row has room for ``more`` sets with a target of their own."""
    return len({part.set_id for part in dead if part.target is not None}) + more <= REDRIVEN_SETS


def runs_of(dead: Iterable[DeadSet], set_id: UUID) -> Runs:
    """The messages of one set."""
    return union(part.runs for part in dead if part.set_id == set_id)


def _fitting(dead: Dead, reason: str) -> str:
    """The reason, if the row has it already or has room for it [T2]."""
    known = {part.reason for part in dead}
    if reason in known or _bytes_of({*known, reason}) <= REASONS_BYTES:
        return reason
    return FURTHER_REASONS


def _bytes_of(words: Iterable[str]) -> int:
    return sum(len(word.encode()) for word in words)
