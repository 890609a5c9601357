"""Table ``pointer`` holds max registers without LWT (G4). Holds I6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.pointer import Pointer, Pointers
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.store.session import CqlSession


@dataclass(slots=True, weakref_slot=True)
class Seen:
    """The facts that one client remembers of a lane.

    Attributes:
        time: The time pointer as last read.
        is_begun: Whether its queue is known to be in use; see `queue.reserve`. Only for first
            lanes.
    """

    time: int = 0
    is_begun: bool = False


_KNOWN: Final = frozenset(Pointer)
"""The kinds of pointers, which are the fields of `Pointers`; a newer release may have more."""


class PointerTable:
    """The pointers of one lane."""

    def __init__(self, session: CqlSession, lane: LaneId, seen: Seen) -> None:
        self._session = session
        self._lane = lane
        self.seen = seen

    async def read(self) -> Pointers:
        """Read all pointers of a lane by one quorum read; an absent one is 0."""
        return await self.begin_read()()

    def begin_read(self) -> Callable[[], Awaitable[Pointers]]:
        """Send the read of `read` without waiting; call the returned function, once, to wait."""
        sent = self._session.start(statements.READ_POINTERS, (self._lane,))

        async def found() -> Pointers:
            return self._pointers(await self._session.finish(sent))

        return found

    def _pointers(self, rows: Iterable[Any]) -> Pointers:
        values: dict[str, Any] = {row.kind: row.value or 0 for row in rows if row.kind in _KNOWN}
        found = Pointers(**values)
        self.seen.time = found.time
        return found

    def time_seen(self) -> int:
        """Return the time pointer as this client last read it; it may be further by now."""
        return self.seen.time

    async def advance(self, pointer: Pointer, value: int) -> None:
        """Move a pointer up; a value below the present one changes nothing.

        It is answered at quorum, so the work that the new value permits may begin (G4). The value
        is its own write timestamp, so the largest wins, whoever writes last.

        Raises:
            ValueError: The value is below 1, which no timestamp may be.
            StoreTimeout: Not answered: nothing may be destroyed because of it.
        """
        await self._session.run(statements.ADVANCE_POINTER, self._moved(pointer, value))

    def begin_advance(self, pointer: Pointer, value: int) -> Callable[[], Awaitable[object]]:
        """Send the write of `advance` without waiting; call the returned function, once."""
        sent = self._session.start(statements.ADVANCE_POINTER, self._moved(pointer, value))
        return lambda: self._session.finish(sent)

    def _moved(self, pointer: Pointer, value: int) -> tuple[object, ...]:
        if value < 1:
            raise ValueError(f"a pointer's value is 1 or more, not {value}")
        return value, value, self._lane, pointer.value
