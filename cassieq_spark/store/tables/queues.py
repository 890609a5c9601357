"""Table ``queue`` holds names, settings and lanes. LWT only (G1, G2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.outcome import Outcome, Stored
from cassieq_spark.options import QueueSettings
from cassieq_spark.store import statements
from cassieq_spark.store.tables.table import CasTable

_LABELS: Final = "labels"


class QueueStatus(StrEnum):
    """The phase of a queue's life."""

    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue, as its row has it.

    Attributes:
        lanes: Its sequences of ids. There is one at first, but no code below may rely on that.
        home_datacenter: The data centre whose quorum decides; clients elsewhere are refused [P21].
        created_us: Cluster time; the time pointer's start [R13].
        labels: Texts that programs keep with the queue; no rule depends on them.
    """

    name: QueueName
    queue_id: UUID
    status: QueueStatus
    settings: QueueSettings
    lanes: tuple[LaneId, ...]
    home_datacenter: str
    created_us: int
    labels: Mapping[str, str] = field(default_factory=dict)


class Queues(CasTable[QueueRow]):
    """The queue rows."""

    READ = statements.READ_QUEUE

    async def find(self, name: QueueName) -> Stored[QueueRow] | None:
        """Return the row of a quorum of this data centre; it may be an older one, or not there yet.

        It is also None if that quorum does not answer: `read` asks all data centres.
        """
        return self._stored(await self._session.attempt(statements.FIND_QUEUE, (name,)))

    async def find_all(self) -> list[QueueRow]:
        """Return every queue that this data centre's quorum knows, by name; else as `read_all`."""
        rows = await self._session.attempt(statements.FIND_QUEUES)
        return await self.read_all() if rows is None else self._by_name(rows)

    async def some_names(self) -> list[str]:
        """Return names of queues, at most a thousand; none if Cassandra does not answer."""
        return [row.name for row in await self._session.attempt(statements.SOME_NAMES) or ()]

    async def read_all(self) -> list[QueueRow]:
        """Return every queue of all data centres, by name."""
        return self._by_name(await self._session.run(statements.LIST_QUEUES))

    async def insert(self, row: QueueRow) -> Outcome[QueueRow]:
        """Insert the row by CAS, if there is none."""
        columns = (
            row.queue_id,
            row.status.value,
            _to_json(row),
            list(row.lanes),
            row.home_datacenter,
            row.created_us,
        )
        return await self._send(statements.INSERT_QUEUE, (row.name,), row, columns)

    async def update(self, old: Stored[QueueRow], row: QueueRow) -> Outcome[QueueRow]:
        """Write other settings, or the first step of a deletion, by CAS."""
        columns = (row.status.value, _to_json(row))
        return await self._send(statements.UPDATE_QUEUE, (row.name,), row, columns, old=old)

    async def delete(self, old: Stored[QueueRow]) -> None:
        """Remove this row; a row that was created under the name since stays."""
        await self._delete(statements.DELETE_QUEUE, (old.value.name,), old)

    def _by_name(self, rows: list[Any]) -> list[QueueRow]:
        return sorted(self._values(rows), key=lambda queue: queue.name)

    def _decode(self, row: Any) -> QueueRow | None:
        if row.lanes is None:
            return None
        settings, labels = _labels(row.settings)
        return QueueRow(
            name=QueueName(row.name),
            queue_id=row.queue_id,
            status=QueueStatus(row.status),
            settings=QueueSettings.from_json(settings),
            lanes=tuple(LaneId(lane) for lane in row.lanes),
            home_datacenter=row.home_datacenter,
            created_us=row.created_us,
            labels=labels,
        )


def _to_json(row: QueueRow) -> str:
    """Encode settings and labels as one JSON text: a queue without labels has no entry for them."""
    settings = row.settings.to_json()
    if not row.labels:
        return settings
    return json.dumps({**json.loads(settings), _LABELS: dict(row.labels)})


def _labels(stored: str) -> tuple[str, dict[str, str]]:
    """Split a text of `_to_json` into the settings' text and the labels."""
    if f'"{_LABELS}"' not in stored:
        return stored, {}
    try:
        settings = dict(json.loads(stored))
        labels = {str(name): str(text) for name, text in settings.pop(_LABELS, {}).items()}
    except (ValueError, TypeError, AttributeError):
        return stored, {}  # malformed: decoding the settings raises
    return json.dumps(settings), labels
