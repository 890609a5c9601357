"""Errors about a queue as a whole."""

from __future__ import annotations

from cassieq_spark.errors.base import CassieqError


class QueueError(CassieqError):
    """Errors about a queue as a whole."""


class QueueNotFound(QueueError):
    """No queue has that name."""

    code = "queue_not_found"
    meaning = "The keyspace has no queue of that name."
    remedy = "Create the queue, or look for a misspelt name: client.queues() lists all names."


class QueueExists(QueueError):
    """The queue exists with other settings than those named; ``differences`` names them."""

    code = "queue_exists"
    meaning = "A queue of that name exists, and settings that you named have other values there."
    remedy = (
        "Leave these settings out, change the queue with client.alter_queue(), or choose another "
        "name."
    )

    def __init__(self, message: str, *, queue: str = "", differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.queue = queue
        self.differences = differences


class QueueInUse(QueueError):
    """The queue was not deleted, because it is in use or not empty."""

    code = "queue_in_use"
    meaning = (
        "The queue was not deleted: another queue names it as its dead-letter queue, or it holds "
        "messages and the call was to delete it only if it holds none."
    )
    remedy = "Do what the message says."


class QueueDeleted(QueueError):
    """The queue was deleted while it was in use."""

    code = "queue_deleted"
    meaning = "The queue was deleted while it was open."
    remedy = "Open the queue again if it was created anew. Otherwise stop."
