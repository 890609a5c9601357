"""Table ``monoton`` holds the next id of each lane. LWT only (G1, G2); holds I6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.ids import LaneId
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cassieq_spark.store.session import CqlSession
    from cassieq_spark.store.statements import Statement

CLOSED: Final = -1
"""The stored next id of a lane that was closed at 0. In general a closed lane has -1 less its
next id: a due lane has handed out ids before it is closed, but a lane that its creator gave up
has not [T14]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monoton:
    """The ids that a lane has handed out.

    Attributes:
        next_id: The first id that nobody has reserved.
        reserved_us: Cluster time of the last reservation: no bucket below the next id is younger
            [R11].
        is_closed: Whether no further id of this lane will ever be handed out.
    """

    next_id: int
    reserved_us: int
    is_closed: bool = False

    @property
    def stored(self) -> int:
        """The next id in the form of the row."""
        return CLOSED - self.next_id if self.is_closed else self.next_id

    @classmethod
    def of(cls, stored: int, reserved_us: int) -> Monoton:
        """Decode the next id of a row."""
        is_closed = stored < 0
        next_id = CLOSED - stored if is_closed else stored
        return cls(next_id=next_id, reserved_us=reserved_us, is_closed=is_closed)


class Monotons:
    """The monoton rows."""

    def __init__(self, session: CqlSession, sender: CasSender, lane: LaneId) -> None:
        self._session = session
        self._sender = sender
        self._lane = lane

    async def read(self) -> Stored[Monoton] | None:
        """Read the row by quorum; None if the queue was deleted [P13], or never existed [T14]."""
        return await self.begin_read()()

    def begin_read(self) -> Callable[[], Awaitable[Stored[Monoton] | None]]:
        """Send the read of `read` without waiting; call the returned function, once, to wait."""
        sent = self._session.start(statements.READ_MONOTON, (self._lane,))

        async def read() -> Stored[Monoton] | None:
            found = _found(await self._session.finish(sent))
            return None if found is None or found.value.is_closed else found

        return read

    async def find(self) -> Stored[Monoton] | None:
        """Read the row as `read` does, even if the lane is closed."""
        return _found(await self._session.run(statements.READ_MONOTON, (self._lane,)))

    async def insert(self, row: Monoton) -> Outcome[Monoton]:
        """Insert the row by CAS: when a queue is created, or a due lane is created or closed."""
        return await self._send(statements.INSERT_MONOTON, row)

    async def update(self, old: Stored[Monoton], row: Monoton) -> Outcome[Monoton]:
        """Write a reservation, or the end of a lane, by CAS."""
        return await self._send(statements.RESERVE, row, before=old.version)

    async def delete(self, old: Stored[Monoton]) -> None:
        """Remove this row for ever: no id of that lane is handed out again [P13].

        The row stays if ids were reserved since it was read: its remover must know how far the
        lane's data goes [T15]. Read again to see whether it is gone.
        """
        await self._sender.delete(statements.DELETE_MONOTON, (self._lane,), before=old.version)

    async def _send(
        self, statement: Statement, row: Monoton, before: Version | None = None
    ) -> Outcome[Monoton]:
        columns = (row.stored, row.reserved_us)
        return await self._sender.send(
            statement, (self._lane,), row, columns, before=before, read=self.find
        )


def _found(rows: Sequence[Any]) -> Stored[Monoton] | None:
    if not rows or rows[0].writer is None:
        return None
    row = rows[0]
    return Stored(value=Monoton.of(row.next_id, row.reserved_us), version=Version.of_row(row))
