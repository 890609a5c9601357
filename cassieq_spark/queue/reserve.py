"""Reserve whole buckets of a lane, which is the only way to get ids. Holds I6.

It also ends lanes of which no id was reserved, so that none ever will be (ADR 23, 24).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cassieq_spark.errors import CassieqError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.lanes import Monoton

FirstRead = Callable[[], Awaitable[Stored[Monoton] | None]]


ALWAYS: Final = 8
"""After this many equal outcomes in a row, the next one is expected to be the same (ADR 29)."""

CREATED: Final = 1
"""The version of a monoton row that was not changed since it was created."""


async def begin_queue(first: Lane) -> None:
    """Make sure that the first lane's monoton row has changed before another lane is used.

    A client may give up a queue that lost its name, although its INSERT may have landed since. It
    ends such a queue by a CAS on that row as it was created. So it never ends a queue that is in
    use (I1) [T14].
    """
    seen = first.pointers.seen
    if seen.is_begun:
        return
    async for _ in first.attempts():
        found = await first.monotons.read()
        if found is None:
            raise first.deleted()
        if found.version.row_version > CREATED:
            # A row that was ended may be born again by a copy of its INSERT, and be changed then. L
            # was raised before the row was removed, so L is read after the row.
            await first.read_pointers()
            seen.is_begun = True
            return
        # The outcome does not matter: the row is read again.
        await first.monotons.update(found, replace(found.value, reserved_us=first.clock.now_us()))
    raise first.contended(f"the monoton row of {first.title}")


async def reserve(lane: Lane, buckets: int) -> range:
    """Take the next whole buckets, which belong to one writer [P15].

    It costs one quorum read and one LWT. A block whose reservation could not be settled is lost: it
    is a gap, which readers close.

    Args:
        buckets: 1 or more.

    Raises:
        QueueDeleted: The lane has no monoton row: never create it here [P13].
        LaneEnded: The same for a due lane of a queue that exists.
        CasContention: It lost too many times in a row.
    """
    return await Reserver().reserve(lane, buckets)


class Reserver:
    """Reserves for one producer of a lane, and remembers its monoton row.

    If no other client reserves, the row is as the last reservation left it, and the next one needs
    no read. If another client did reserve, that CAS is refused, and rows are read again for a
    while.
    """

    def __init__(self) -> None:
        self._row: Stored[Monoton] | None = None
        self._times_alone = 0

    @property
    def likely(self) -> Stored[Monoton] | None:
        """The row as it probably is now, if only this client reserves; None if others do."""
        return self._row if self._times_alone >= ALWAYS else None

    async def reserve(
        self,
        lane: Lane,
        buckets: int,
        *,
        first_read: FirstRead | None = None,
    ) -> range:
        """Take the next whole buckets; see the function `reserve`.

        Args:
            first_read: It replaces the first read: a read that is running, or one that gives
                `likely`.

        Raises:
            CassieqError: See `reserve`.
        """
        if not lane.is_first:
            await begin_queue(lane.first)
        size = lane.bucket_size
        known, self._row = self._row, None
        read = first_read or lane.monotons.read
        async for _ in lane.attempts():
            old, read = await read(), lane.monotons.read
            if old is None:
                raise await lane.ended()
            first = -(-old.value.next_id // size)
            new = Monoton(next_id=(first + buckets) * size, reserved_us=lane.clock.now_us())
            outcome = await lane.monotons.update(old, new)
            if isinstance(outcome, Applied):
                is_alone = known is not None and known.version == old.version
                self._times_alone = self._times_alone + 1 if is_alone else 0
                self._row = outcome.now
                return range(first, first + buckets)
        raise lane.contended(f"the monoton row of {lane.title}")


async def give_up(store: Store, unused: dict[LaneId, Stored[Monoton] | None]) -> None:
    """End a queue whose INSERT has lost the name to another queue's, and may land later [T14].

    The first lane's monoton row decides whether the queue is ended: it changes before any other
    lane is used (see `begin_queue`). If the INSERT has landed meanwhile and others have reserved
    ids, the queue is in use and stays (I1). A monoton row is closed before its L goes up, and
    exists until then: a copy of its own INSERT must not open the lane again in between.
    """
    (first, row), *others = unused.items()
    if row is None or not await close_unused(store, first, row):
        return
    for lane, row in others:
        if row is not None:
            with suppress(CassieqError):  # try the next; a full repair ends this one
                await close_unused(store, lane, row)


async def close_unused(store: Store, lane: LaneId, row: Stored[Monoton]) -> bool:
    """End a lane that was never used. Return False if its monoton row was changed.

    Args:
        row: The row as its creator knows it. It may show changes of others: if the answer of its
            INSERT was lost, it was read after them (I1).
    """
    if row.version.row_version > CREATED:
        return False
    closed = await store.lane(lane).monotons.update(row, replace(row.value, is_closed=True))
    if not isinstance(closed, Applied):
        return False
    await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)
    await store.lane(lane).monotons.delete(closed.now)
    return True
