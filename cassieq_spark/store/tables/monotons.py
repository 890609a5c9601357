"""Table ``monoton`` holds the next id of each lane. LWT only (G1, G2); holds I6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.ids import LaneId
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version

if TYPE_CHECKING:
    from cassieq_spark.store.session import CqlSession

CLOSED: Final = -1
"""In place of a next id: the lane's creator gave it up before any id was handed out [T14]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monoton:
    """The ids that a lane has handed out.

    Attributes:
        next_id: The first id that nobody has reserved; or `CLOSED`.
        reserved_us: Cluster time of the last reservation: no bucket below is younger [R11].
    """

    next_id: int
    reserved_us: int

    @property
    def is_closed(self) -> bool:
        """Whether no id of this lane will ever be handed out."""
        return self.next_id == CLOSED


class Monotons:
    """The monoton rows."""

    def __init__(self, session: CqlSession, sender: CasSender, lane: LaneId) -> None:
        self._session = session
        self._sender = sender
        self._lane = lane

    def read(self) -> Stored[Monoton] | None:
        """Read the row by quorum; None: the queue was deleted [P13], or never existed [T14]."""
        found = self.find()
        return None if found is None or found.value.is_closed else found

    def find(self) -> Stored[Monoton] | None:
        """Read the row as `read` does, also if it is closed."""
        row = self._session.one(statements.READ_MONOTON, (self._lane,))
        if row is None or row.writer is None:
            return None
        return Stored(
            value=Monoton(next_id=row.next_id, reserved_us=row.reserved_us),
            version=Version.of_row(row),
        )

    def insert(self, row: Monoton) -> Outcome[Monoton]:
        """CAS from no row: once in a lane's life, when its queue is created."""
        return self._sender.send(
            statements.INSERT_MONOTON,
            (self._lane,),
            row,
            before=None,
            bind=lambda version: (self._lane, row.next_id, row.reserved_us, *version.columns),
            read=self.find,
        )

    def update(self, old: Stored[Monoton], row: Monoton) -> Outcome[Monoton]:
        """CAS for a reservation, or for the end of a lane that got no queue."""

        def bind(version: Version) -> tuple[Any, ...]:
            return row.next_id, row.reserved_us, *version.columns, self._lane, old.version.writer

        return self._sender.send(
            statements.RESERVE,
            (self._lane,),
            row,
            before=old.version,
            bind=bind,
            read=self.find,
        )

    def delete(self, old: Stored[Monoton]) -> None:
        """Remove this row for ever: no id of that lane is handed out again [P13].

        The row stays if ids were reserved since it was read: whoever removes it knows how far the
        lane's data goes [T15]. Read again to see whether it is gone.
        """
        self._sender.delete(statements.DELETE_MONOTON, (self._lane,), before=old.version)
