"""`ACTIONS` lists what can be asked of the SQS door, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.server.sqs import messages, moves, queues

if TYPE_CHECKING:
    from cassieq_spark.server.sqs.call import Action

ACTIONS: Final[dict[str, Action]] = {
    one.name: one
    for one in (
        messages.send, messages.send_batch, messages.receive, messages.delete,
        messages.delete_batch, messages.change_visibility, messages.change_visibility_batch,
        queues.create, queues.get_url, queues.list_queues, queues.list_sources, queues.delete,
        queues.purge, queues.get_attributes, queues.set_attributes, queues.tag, queues.untag,
        queues.list_tags, queues.add_permission, queues.remove_permission,
        moves.start, moves.list_tasks, moves.cancel,
    )
}  # fmt: skip
