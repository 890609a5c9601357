"""Table ``monoton``: the next id of each lane. LWT only (G1, G2); holds I6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.ids import LaneId
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.store.session import CqlSession

CLOSED: Final = -1
"""In place of a next id: the lane's creator has given it up before anybody was given one [T14]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monoton:
    """What a lane has handed out.

    Attributes:
        next_id: The first id that nobody has reserved; or `CLOSED`.
        reserved_us: Cluster time of the last reservation: no bucket below is younger [R11].
    """

    next_id: int
    reserved_us: int

    @property
    def is_closed(self) -> bool:
        """Whether nobody will ever be given an id of this lane."""
        return self.next_id == CLOSED


class Monotons:
    """The monoton rows."""

    def __init__(self, session: CqlSession, sender: CasSender) -> None:
        self._session = session
        self._sender = sender

    def read(self, lane: LaneId) -> Stored[Monoton] | None:
        """The row by quorum; None: the queue was deleted [P13], or never was one [T14]."""
        found = self.find(lane)
        return None if found is None or found.value.is_closed else found

    def every(self) -> Iterator[LaneId]:
        """The lanes that have a row: a scan of the whole table."""
        for row in self._session.run(statements.LIST_MONOTONS, ()):
            yield LaneId(row.lane)

    def find(self, lane: LaneId) -> Stored[Monoton] | None:
        """As `read`, but also one that is closed."""
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
            read=lambda: self.find(lane),
        )

    def update(self, lane: LaneId, old: Stored[Monoton], row: Monoton) -> Outcome[Monoton]:
        """The reservation; or the end of a lane that was to be no queue's."""

        def bind(version: Version) -> tuple[Any, ...]:
            return row.next_id, row.reserved_us, *version.columns, lane, old.version.writer

        return self._sender.send(
            statements.RESERVE,
            (lane,),
            row,
            before=old.version,
            bind=bind,
            read=lambda: self.find(lane),
        )

    def delete(self, lane: LaneId, old: Stored[Monoton]) -> None:
        """Remove this row for ever: no id of that lane is handed out again [P13].

        Not one from which ids were reserved since it was read: whoever removes it knows how far the
        lane's data goes [T15]. Read again whether it is gone.
        """
        self._sender.delete(statements.DELETE_MONOTON, (lane,), before=old.version)
