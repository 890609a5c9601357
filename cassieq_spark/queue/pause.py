"""Pause a queue, or one priority of it, and resume it (docs/design/pause.md).

Each fixed lane has a register; an odd value means that the lane is paused. Every get reads it after
its claims (`Claimer.confirm`), so no get that confirms after `change` has returned hands anything
out. A due lane has no register: that of the first lane of its priority counts (`Lane.gate`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.pointer import Pointer, Pointers, paused_at
from cassieq_spark.queue.lane import Lane

STILL_S: Final = 1.0
"""How long a look waits for each register of a paused priority, beside others (I10)."""

_logger = get_logger("queue")


async def change(lane: Lane, priority: int | None, *, pauses: bool) -> None:
    """Pause or resume the lanes of a priority; None: of all.

    If the caller dies on the way, some lanes have the new value and others not yet. Then the same
    call again makes all alike, and until then `paused` names the priority.

    Raises:
        QueueDeleted: The queue is gone.
        StoreTimeout, StoreUnavailable: Some lanes may be paused, or resumed. Call it again.
    """
    lanes = [one for one in lane.all if priority in {None, one.priority}]
    session = lane.store.session
    found = await session.map(lambda one: one.read_pointers(), lanes)
    registers = (one.paused for one in found)
    value = paused_at(registers, pauses=pauses, now_us=lane.clock.now_us())
    # Also if it is paused already: an opposite call without an answer may land later.
    await session.map(lambda one: one.pointers.advance(Pointer.PAUSED, value), lanes)
    if pauses:
        event(_logger, "queue_paused", queue=lane.queue, priority=priority)
    else:
        event(_logger, "queue_resumed", queue=lane.queue, priority=priority)


async def paused(lane: Lane) -> tuple[int, ...]:
    """Return the priorities of which any lane is paused, by one read for each fixed lane.

    Raises:
        QueueDeleted: The queue is gone.
    """
    found = await lane.store.session.map(lambda one: one.read_pointers(), lane.all)
    both = zip(lane.all, found, strict=True)
    return tuple(sorted({one.priority for one, seen in both if seen.is_paused}))


async def still_paused(lane: Lane, priorities: Collection[int]) -> set[int]:
    """Return which of these priorities are paused, by one read for each.

    It only saves claims that their gets would give back. So a priority that does not answer is left
    out, and those gets tell why.

    Raises:
        QueueDeleted: The queue is gone.
    """
    session, asked = lane.store.session, list(priorities)
    with session.within(each_s=STILL_S):
        found = await session.each(lambda one: lane.gate_of(one).read_pointers(), asked)
    for seen in found:
        if isinstance(seen, CassieqError) and not seen.retriable:
            raise seen
    both = zip(asked, found, strict=True)
    return {one for one, seen in both if isinstance(seen, Pointers) and seen.is_paused}
