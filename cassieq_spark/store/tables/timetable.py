"""Table ``timetable`` holds the schedules of programs. LWT only (G1, G2)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from cassandra.query import UNSET_VALUE

from cassieq_spark.errors import RowCorrupt
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.outcome import Outcome, Stored
from cassieq_spark.model.recurring import (
    Schedule,
    State,
    Status,
    decode_definition,
    decode_state,
    encode_definition,
    encode_state,
)
from cassieq_spark.model.slots import Slot
from cassieq_spark.store import statements
from cassieq_spark.store.tables.table import CasTable


class Glance(NamedTuple):
    """When a schedule is to be touched, as one replica knows it."""

    name: str
    queue: QueueName
    lane: LaneId
    touch_us: int


class Timetable(CasTable[Schedule]):
    """The schedules of this data centre."""

    READ = statements.READ_TIMETABLE

    async def find(self, name: str) -> Stored[Schedule] | None:
        """Read a schedule by quorum."""
        return await self.read(self._session.datacenter, name)

    async def glance(self) -> list[Glance]:
        """Return when each schedule is to be touched; it may be outdated, or leave new ones out."""
        rows = await self._session.run(statements.GLANCE_TIMETABLE)
        here = self._session.datacenter
        return [
            Glance(row.name, QueueName(row.queue), LaneId(row.lane), row.touch_us)
            for row in rows
            # A replica may have a touch without the definition before it.
            if row.datacenter == here and row.queue is not None and row.status != Status.NEW
        ]

    async def read_all(self) -> list[Schedule]:
        """Return every schedule, by name."""
        rows = await self._session.run(statements.LIST_TIMETABLE)
        here = self._session.datacenter
        found: list[Schedule] = []
        for row in rows:
            with suppress(RowCorrupt):  # it fails alone, where it is touched or asked for
                found += self._values([row] if row.datacenter == here else [])
        return sorted(found, key=lambda one: one.name)

    async def insert(self, schedule: Schedule) -> Outcome[Schedule]:
        """Insert the row by CAS, if there is none."""
        return await self._send(
            statements.INSERT_TIMETABLE, _key(schedule), schedule, _defined(schedule)
        )

    async def define(self, old: Stored[Schedule], schedule: Schedule) -> Outcome[Schedule]:
        """Write all of the row by CAS."""
        return await self._send(
            statements.DEFINE_TIMETABLE, _key(schedule), schedule, _defined(schedule), old=old
        )

    async def touch(self, old: Stored[Schedule], schedule: Schedule) -> Outcome[Schedule]:
        """Write how far it has come by CAS, without the definition, which may be large."""
        columns = (encode_state(schedule.state), schedule.touch_us)
        return await self._send(
            statements.TOUCH_TIMETABLE, _key(schedule), schedule, columns, old=old
        )

    async def delete(self, old: Stored[Schedule]) -> bool:
        """Remove the row as read; return whether an answer said so."""
        return await self._delete(statements.DELETE_TIMETABLE, _key(old.value), old)

    def _decode(self, row: Any) -> Schedule | None:
        if row.state is None:
            return None
        try:
            definition = None if row.definition is None else decode_definition(row.definition)
            status = Status(row.status) if row.status in list(Status) else Status.FOREIGN
            state = decode_state(row.state)
            if status is not Status.NEW and (definition is None or state is None):
                status = Status.FOREIGN
            return Schedule(
                datacenter=row.datacenter,
                name=row.name,
                queue=QueueName(row.queue),
                lane=LaneId(row.lane),
                status=status,
                definition=None if status is Status.FOREIGN else definition,
                state=state or State(cursor=Slot(0)),
                touch_us=row.touch_us,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise RowCorrupt(
                f"the row of schedule {row.name!r} cannot be read ({error!r}); was it written by "
                "hand or by a newer release?"
            ) from error


def _key(schedule: Schedule) -> tuple[str, str]:
    return schedule.datacenter, schedule.name


def _defined(schedule: Schedule) -> tuple[Any, ...]:
    definition = schedule.definition
    return (
        schedule.queue,
        schedule.lane,
        schedule.status.value,
        UNSET_VALUE if definition is None else encode_definition(definition),
        encode_state(schedule.state),
        schedule.touch_us,
    )
