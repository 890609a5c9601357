"""`OPERATIONS` lists what can be asked of the REST door: routes and the OpenAPI document follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.server.rest import keys, messages, queues, receipts

if TYPE_CHECKING:
    from cassieq_spark.server.rest.operation import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    queues.list_queues, queues.create, queues.show, queues.alter, queues.delete,
    queues.statistics, queues.purge,
    messages.put, messages.put_many, messages.next_messages, messages.peek,
    receipts.ack_one, receipts.update_one,
    receipts.ack, receipts.extend, receipts.release, receipts.reject, receipts.update,
    messages.show_letters, messages.redrive,
    keys.list_keys, keys.create, keys.rotate, keys.change, keys.delete, keys.sign,
)  # fmt: skip
