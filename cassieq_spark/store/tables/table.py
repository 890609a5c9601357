"""`Table`, `LaneTable` and `CasTable` are the common parts of the tables of one store."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.outcome import Outcome, Stored, Version
from cassieq_spark.store.cas import CasSender
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import Statement

T = TypeVar("T")


class Base:
    """The parts of a store that all of its tables use."""

    def __init__(self, session: CqlSession) -> None:
        self.session = session
        self.sender = CasSender(session)
        self.clock = session.clock
        self.entropy = session.entropy


class Table:
    """The rows of a table, for all queues."""

    def __init__(self, store: Base) -> None:
        self._store = store
        self._session = store.session
        self._sender = store.sender


class LaneTable(Table):
    """The rows of a table, for one lane."""

    def __init__(self, store: Base, lane: LaneId) -> None:
        super().__init__(store)
        self._lane = lane


class CasTable(Table, Generic[T]):
    """The rows of a table that only CASes write, each conditional on the row as read."""

    READ: ClassVar[Statement]

    async def read(self, *key: Any) -> Stored[T] | None:
        """Read the row by a quorum, of all data centres if it is a name's: it decides."""
        return self._stored(await self._session.run(self.READ, key))

    def _decode(self, row: Any) -> T | None:
        """Decode a row; None: it is not yet whole in this data centre."""
        raise NotImplementedError

    def _stored(self, rows: list[Any] | None) -> Stored[T] | None:
        """Return the first row, unless it is gone, or an update of it came before it."""
        if not rows or rows[0].writer is None:
            return None
        value = self._decode(rows[0])
        return None if value is None else Stored(value=value, version=Version.of_row(rows[0]))

    def _values(self, rows: list[Any]) -> list[T]:
        return [one.value for row in rows if (one := self._stored([row])) is not None]

    async def _send(
        self,
        statement: Statement,
        key: tuple[Any, ...],
        value: T,
        columns: tuple[Any, ...],
        *,
        old: Stored[T] | None = None,
    ) -> Outcome[T]:
        """Run one CAS; see `CasSender.send`."""
        before = None if old is None else old.version
        read = partial(self.read, *key)
        return await self._sender.send(statement, key, value, columns, before=before, read=read)

    async def _delete(self, statement: Statement, key: tuple[Any, ...], old: Stored[T]) -> bool:
        """Remove the row as read; see `CasSender.delete`."""
        return await self._sender.delete(statement, key, before=old.version)
