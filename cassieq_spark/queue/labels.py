"""Labels: texts that programs keep with a queue, such as its owner. No rule depends on them.

They are stored with the settings in the queue's row, and its CAS changes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cassieq_spark.log import event, get_logger
from cassieq_spark.options import arguments
from cassieq_spark.queue.admin import change_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.queues import QueueRow

_logger = get_logger("queue")


async def label(store: Store, name: QueueName, changes: Mapping[str, str | None]) -> QueueRow:
    """Set labels, and remove those whose text is None. The others stay.

    Raises:
        QueueNotFound: The queue does not exist.
        OptionInvalid: The labels would be too large together.
        UsageError: The queue lives in another data centre.
    """

    async def change(row: QueueRow) -> QueueRow:
        merged = {**row.labels, **changes}
        labels = {key: text for key, text in merged.items() if text is not None}
        arguments.check_labels(labels)
        return replace(row, labels=labels)

    before, after = await change_row(store, name, change)
    if after.value != before:
        event(_logger, "queue_altered", queue=name, settings="labels")
    return after.value
