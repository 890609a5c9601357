"""Delete a queue unless something depends on it.

No queue can name it as its dead-letter queue between the check and the deletion; see `admin`. But a
message may be put in between: a put changes no row of the queue, and stopping puts cannot be
undone. That message is lost with the queue, as is one that was put just before an unconditional
deletion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.errors import QueueInUse
from cassieq_spark.queue import admin
from cassieq_spark.queue.find import lane_of, sources_of
from cassieq_spark.queue.inspect.stats import stats

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId, QueueName
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.queues import QueueRow


async def delete(
    store: Store,
    name: QueueName,
    lane: LaneId | None = None,
    *,
    force: bool,
    if_empty: bool,
    if_unused: bool,
) -> LaneId:
    """Delete a queue as `admin.delete` does, if nothing depends on it.

    Raises:
        QueueInUse: Another queue needs it, or it holds messages that it must not; nothing was
            deleted.
    """

    async def check(row: QueueRow) -> None:
        if not force:
            await _refuse_a_target(store, name)
        if if_empty or if_unused:
            await _refuse_held(store, row, if_empty=if_empty, if_unused=if_unused)

    return await admin.delete(store, name, lane, check=check)


async def _refuse_a_target(store: Store, name: QueueName) -> None:
    if sources := await sources_of(store, name, is_decided=True):
        raise QueueInUse(
            f"queue {name!r} is the dead-letter queue of {', '.join(map(repr, sources))}: without "
            "it, repair cannot move their dead messages. Give them another dead_letter_queue, or "
            "delete it with force=True"
        )


async def _refuse_held(store: Store, row: QueueRow, *, if_empty: bool, if_unused: bool) -> None:
    held = await stats(lane_of(store, row))
    if if_unused and held.invisible:
        raise QueueInUse(
            f"queue {row.name!r} has {held.invisible:,} messages in flight: consumers work on "
            "them. Delete it when they have ended, or without if_unused"
        )
    if if_empty and held.total:
        raise QueueInUse(
            f"queue {row.name!r} holds {held.total:,} messages. Delete it when they are done, or "
            "without if_empty"
        )
