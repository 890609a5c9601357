"""Table ``monoton``: the next id of each lane. LWT only (G1, G2); holds I6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.store.session import CqlSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Monoton:
    """What a lane has handed out.

    Attributes:
        next_id: The first id that nobody has reserved.
        reserved_us: Cluster time of the last reservation: no bucket below is younger [R11].
    """

    next_id: int
    reserved_us: int


class Monotons:
    """The monoton rows."""

    def __init__(self, session: CqlSession, sender: CasSender) -> None:
        self._session = session
        self._sender = sender

    def read(self, lane: LaneId) -> Stored[Monoton] | None:
        """The row by quorum; None: the queue was deleted [P13]."""
        row = self._session.one(statements.READ_MONOTON, (lane,))
        if row is None or row.writer is None:
            return None
        return Stored(
            value=Monoton(next_id=row.next_id, reserved_us=row.reserved_us),
            version=Version.of_row(row),
        )

    def insert(self, lane: LaneId, row: Monoton) -> Outcome[Monoton]:
        """CAS from no row: once in a lane's life, when its queue is created."""
        return self._sender.send(
            statements.INSERT_MONOTON,
            (lane,),
            row,
            before=None,
            bind=lambda version: (lane, row.next_id, row.reserved_us, *version.columns),
            read=lambda: self.read(lane),
        )

    def update(self, lane: LaneId, old: Stored[Monoton], row: Monoton) -> Outcome[Monoton]:
        """The reservation."""

        def bind(version: Version) -> tuple[Any, ...]:
            return row.next_id, row.reserved_us, *version.columns, lane, old.version.writer

        return self._sender.send(
            statements.RESERVE,
            (lane,),
            row,
            before=old.version,
            bind=bind,
            read=lambda: self.read(lane),
        )

    def delete(self, lane: LaneId) -> None:
        """Remove the row for ever: no id of that lane is handed out again [P13]."""
        self._sender.delete(statements.DELETE_MONOTON, (lane,))
