"""Labels: texts that programs keep with a queue, such as its owner. No rule depends on them.

They are stored with the settings in the queue's row, and change by its CAS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cassieq_spark.errors import CasContention
from cassieq_spark.log import event, get_logger
from cassieq_spark.options import arguments
from cassieq_spark.queue.admin import missing
from cassieq_spark.queue.find import check_home, read_row
from cassieq_spark.queue.lane import attempts
from cassieq_spark.store.cas import Applied
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.store.store import Store

_logger = get_logger("queue")


def label(store: Store, name: QueueName, changes: Mapping[str, str | None]) -> QueueRow:
    """Set labels, and remove those whose text is None; the others stay.

    Raises:
        QueueNotFound: It does not exist.
        OptionInvalid: The labels would be too large together.
        UsageError: It lives in another data centre.
    """
    for _ in attempts(store.clock):
        found = read_row(store, name)
        if found is None or found.value.status is not QueueStatus.ACTIVE:
            raise missing(store, name)
        check_home(store, found.value)
        merged = {**found.value.labels, **changes}
        labels = {key: text for key, text in merged.items() if text is not None}
        arguments.check_labels(labels)
        if labels == found.value.labels:
            return found.value
        row = replace(found.value, labels=labels)
        if isinstance(store.queues.update(found, row), Applied):
            event(_logger, "queue_altered", queue=name, settings="labels")
            return row
    raise CasContention(f"other clients alter queue {name!r} again and again. Try again later")
