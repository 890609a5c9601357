"""Log structured events on stdlib ``logging``: stable event names, fields as ``extra``.

This is a library inside other people's drivers and executors: their handlers and levels apply.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event name; never renamed after a release."""

    level: int
    meaning: str


EVENTS: Final[dict[str, Event]] = {
    "acks_stale": Event(
        level=logging.WARNING,
        meaning="Receipts that a consumer acked had expired: nothing was changed for them.",
    ),
    "batch_committed": Event(level=logging.INFO, meaning="A sink's micro-batch became visible."),
    "batch_prepared": Event(
        level=logging.DEBUG,
        meaning="All of a micro-batch was stored through the connector; it is not visible yet.",
    ),
    "batch_purged": Event(
        level=logging.WARNING,
        meaning="A restarted query goes on without messages of its batch that a purge dropped.",
    ),
    "batch_replayed": Event(level=logging.INFO, meaning="A restart resumed a logged batch."),
    "bucket_row_corrupt": Event(
        level=logging.ERROR,
        meaning="A bucket's row cannot be read: nothing of it is delivered or dropped until it is "
        "restored. Others go on.",
    ),
    "bucket_sealed": Event(level=logging.DEBUG, meaning="An open bucket's content was fixed."),
    "bucket_unreachable": Event(
        level=logging.WARNING,
        meaning="The store did not answer for one bucket or sink; all others went on without it.",
    ),
    "buckets_dropped": Event(
        level=logging.INFO, meaning="Buckets in which all is done were dropped with their rows."
    ),
    "claim_answered_late": Event(
        level=logging.WARNING,
        meaning="A claim was answered too late to be handed out, and was given back uncounted.",
    ),
    "connector_look_failed": Event(
        level=logging.INFO,
        meaning="Whether a session of the connector is stuck could not be looked at.",
    ),
    "connector_session_closed": Event(
        level=logging.WARNING,
        meaning="A session of the connector could look at no schema any more; the write is tried "
        "once more, with a new one.",
    ),
    "consumer_failed": Event(
        level=logging.WARNING,
        meaning="A consumer's thread could not reach the store; it tries again.",
    ),
    "dead_moved": Event(
        level=logging.WARNING, meaning="Messages out of deliveries went to their dead-letter queue."
    ),
    "error_crossed": Event(
        level=logging.DEBUG,
        meaning="An error left for Spark as one short text; here are its traceback and its causes.",
    ),
    "get_given_back": Event(
        level=logging.WARNING,
        meaning="Messages were claimed and could not be read: they were given back uncounted.",
    ),
    "get_ran_out": Event(
        level=logging.WARNING,
        meaning="Leases ran out while bodies were read: those messages were not handed out.",
    ),
    "give_back_failed": Event(
        level=logging.INFO, meaning="Unused reserved buckets are left for readers to close."
    ),
    "heartbeat_failed": Event(
        level=logging.INFO, meaning="A writer could not say that it is at work."
    ),
    "lag_unknown": Event(
        level=logging.INFO, meaning="A query's lag could not be counted; tried again later."
    ),
    "last_ack_failed": Event(
        level=logging.WARNING,
        meaning="The last batch of a query that ended could not be acked; its restart acks it.",
    ),
    "lead_lost": Event(
        level=logging.INFO, meaning="Two repairs may run at once: twice the work, and no harm."
    ),
    "lease_lost_in_batch": Event(
        level=logging.WARNING,
        meaning="Leases of a running batch ran out: another consumer processes its messages too.",
    ),
    "lease_lost_on_replay": Event(
        level=logging.WARNING,
        meaning="A restarted query found messages of its batch acked or held by somebody else.",
    ),
    "lease_short": Event(
        level=logging.WARNING, meaning="Leases ran out before their batch could begin."
    ),
    "look_ahead_failed": Event(
        level=logging.INFO,
        meaning="The next batch could not be looked for beside this one; it is looked for again.",
    ),
    "messages_redriven": Event(
        level=logging.INFO,
        meaning="Messages went from a queue to the one that a redrive sent them to.",
    ),
    "messages_unreadable": Event(
        level=logging.ERROR,
        meaning="Stored messages are not as they were put: they stay leased, and die when they are "
        "out of deliveries. Others go on.",
    ),
    "node_clock_wrong": Event(
        level=logging.WARNING,
        meaning="A Cassandra node's clock is more than a second from the others': set it by NTP.",
    ),
    "paxos_variant_v1": Event(
        level=logging.WARNING,
        meaning="The cluster runs Paxos v1, which is not safe across range movements; set v2.",
    ),
    "pointer_not_advanced": Event(
        level=logging.WARNING,
        meaning="The store did not answer for a pointer; the next look moves it on.",
    ),
    "put_unanswered": Event(
        level=logging.INFO,
        meaning="A put's write was not answered: its bucket is sealed, to know what is in it.",
    ),
    "put_unproven": Event(
        level=logging.WARNING, meaning="A put could be neither proven nor settled: PutAmbiguous."
    ),
    "query_progress": Event(level=logging.INFO, meaning="How far a streaming query is behind."),
    "queue_altered": Event(level=logging.INFO, meaning="Settings of a queue were changed."),
    "queue_created": Event(level=logging.INFO, meaning="A queue was created."),
    "queue_deleted": Event(level=logging.INFO, meaning="A queue was deleted with all it held."),
    "queue_purged": Event(level=logging.WARNING, meaning="All messages of a queue were dropped."),
    "queue_recreated": Event(
        level=logging.WARNING, meaning="A checkpoint goes on with a queue that was created anew."
    ),
    "renewal_failed": Event(
        level=logging.WARNING, meaning="Leases could not be renewed; tried again next period."
    ),
    "repair_failed": Event(
        level=logging.WARNING, meaning="A repair step could not be done; the next pass tries again."
    ),
    "replay_skipped": Event(
        level=logging.INFO, meaning="A batch was in the queue already; nothing was written."
    ),
    "reserved_bucket_lost": Event(
        level=logging.INFO, meaning="A reserved bucket was closed before its writer came to it."
    ),
    "roll_forward_left_to_others": Event(
        level=logging.WARNING,
        meaning="A batch is committed but not visible yet; the next reader makes it so.",
    ),
    "rolled_forward_by_reader": Event(
        level=logging.INFO, meaning="A reader finished a commit that its driver had left half-way."
    ),
    "settling_failed": Event(
        level=logging.WARNING,
        meaning="What a sink has decided could not be read or carried out; its messages wait.",
    ),
    "sink_forgotten": Event(
        level=logging.INFO, meaning="A sink id was freed for a new checkpoint."
    ),
    "transaction_aborted": Event(
        level=logging.WARNING,
        meaning="A bulk writer was silent for long: nothing of its transaction will be visible.",
    ),
    "verdicts_stale": Event(
        level=logging.WARNING,
        meaning="Verdicts came with receipts that had expired: nothing was changed for them.",
    ),
}


def get_logger(layer: str) -> logging.Logger:
    """The logger ``cassieq_spark.<layer>``."""
    return logging.getLogger(f"cassieq_spark.{layer}")


def event(logger: logging.Logger, name: str, /, **fields: object) -> None:
    """Log one event; ``fields`` are in the text and as attribute ``fields`` of the record.

    Raises:
        KeyError: The name is not in `EVENTS`: a mistake in this package.
    """
    known = EVENTS[name]
    if logger.isEnabledFor(known.level):
        text = "".join(f" {key}={_shown(value)}" for key, value in fields.items())
        extra = {"event": name, "fields": fields}
        # The record names the caller's line, not this one.
        logger.log(known.level, "%s%s", name, text, extra=extra, stacklevel=2)


def _shown(value: object) -> str:
    """Quote a value whose blanks or line ends would make two fields, or two records, of one."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
