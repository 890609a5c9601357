"""Log structured events on stdlib ``logging``: stable event names, fields as ``extra``.

This library runs inside other people's drivers and executors: their handlers and levels apply. The
event loop must not wait for those handlers, so its records are deferred.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kind of event. Its name is never changed after a release."""

    level: int
    meaning: str


_MEANINGS: Final[dict[int, dict[str, str]]] = {
    logging.DEBUG: {
        "batch_prepared": "A whole micro-batch was stored through the connector. It is not visible "
        "yet.",
        "bucket_sealed": "The content of an open bucket was fixed.",
        "key_use_not_recorded": "The time of a key's last use could not be stored. The request "
        "went on.",
        "spark_error_shortened": "An error went to Spark as one short text. This event has its "
        "traceback and its causes.",
    },
    logging.INFO: {
        "account_changed": "An account was disabled or enabled.",
        "account_created": "An account was created.",
        "account_deleted": "An account was deleted, with its keys and queues.",
        "batch_committed": "A sink's micro-batch became visible.",
        "batch_replayed": "A restarted query resumed a batch that its checkpoint had logged.",
        "buckets_dropped": "Finished buckets were dropped, together with their rows.",
        "connector_look_failed": "It could not be checked whether a session of the connector is "
        "stuck.",
        "due_lane_finished": "All messages that were scheduled for one period are done, and their "
        "lane was removed.",
        "exporter_connected": "An exporter of metrics has connected to Cassandra.",
        "gateway_connected": "A gateway has connected to Cassandra and serves requests.",
        "give_back_failed": "Unused reserved buckets could not be given back. Readers will close "
        "them.",
        "heartbeat_failed": "A writer could not store its heartbeat.",
        "key_changed": "A key was disabled or enabled.",
        "key_created": "A key of an account was made.",
        "key_deleted": "A key of an account was deleted.",
        "lag_unknown": "A query's lag could not be counted. It is tried again later.",
        "leadership_lost": "A leader of repair or of scans lost its lease. Two may now run at "
        "once: twice the work, but no harm.",
        "leadership_outlived": "The row of a leader was still there after its lease had ended: the "
        "clock of the node that wrote it was ahead. Another process leads now.",
        "look_ahead_failed": "The look-ahead for the next batch failed. The batch is looked for "
        "again.",
        "messages_expired": "Messages expired undelivered. They become dead letters if `dead`, and "
        "are dropped otherwise.",
        "messages_redriven": "A redrive sent messages of a queue to another one.",
        "put_unanswered": "The write of a put was not answered. Its bucket is sealed, to find out "
        "what is in it.",
        "query_progress": "A streaming query reported its progress: its lag and other figures.",
        "queue_altered": "Settings of a queue were changed.",
        "queue_created": "A queue was created.",
        "queue_deleted": "A queue was deleted with all that it held.",
        "queue_joined": "A query began to read a queue that was created after it began.",
        "queue_paused": "A queue, or one priority of it, was paused: no get returns its messages.",
        "queue_resumed": "A queue, or one priority of it, was resumed after a pause.",
        "repair_changed": "A pass of `jobs/repair.py` that repeats has done something: what, by "
        "queue.",
        "replay_skipped": "A batch was already in the queue. Nothing was written.",
        "request_answered": "The access log of a gateway, with --access-log: a request was "
        "answered, or its caller went away (status 0).",
        "reserved_bucket_lost": "A reserved bucket was closed before its writer used it.",
        "rolled_forward_by_reader": "A reader finished a commit that its driver had left half-way.",
        "scan_leadership_taken": "This process counts the queues of its data centre for metrics "
        "from now on.",
        "sink_forgotten": "A sink id was freed for a new checkpoint.",
        "worker_reloads": "A worker got SIGHUP. Its processes are replaced, so that the function "
        "is imported anew.",
        "worker_retries": "A function raised Retry. The message comes again after the delay.",
    },
    logging.WARNING: {
        "acks_expired": "Messages were acked, released or rejected after their leases had run out. "
        "Nothing was changed for them: others were given them, or will be.",
        "attribute_without_effect": "A client of the SQS API has set an attribute that has no "
        "effect here, such as a policy or a key for encryption. It is kept and given back. Logged "
        "once per attribute.",
        "batch_purged": "A purge dropped messages of a restarted query's batch. The query goes on "
        "without them.",
        "bucket_unreachable": "Cassandra did not answer for one bucket or sink. All others went on "
        "without it.",
        "claim_answered_late": "A claim was answered too late to hand out its messages. They were "
        "given back, and no delivery was counted.",
        "connector_session_closed": "A session of the connector could no longer read the schema. "
        "The write is tried once more with a new session.",
        "consumer_failed": "A consumer's thread could not reach Cassandra. It tries again.",
        "dead_letter_queue_missing": "Settings of a queue have no effect: they need a "
        "dead_letter_queue, and it has none. Messages of such a queue never die.",
        "dead_moved": "Dead messages were moved to their dead-letter queue.",
        "exporter_waits": "An exporter of metrics cannot reach Cassandra yet. It tries again every "
        "second.",
        "gateway_waits": "A gateway cannot reach Cassandra yet. It tries again every second, and "
        "answers 503 meanwhile.",
        "get_given_back": "Messages were claimed but could not be read. They were given back, and "
        "no delivery was counted.",
        "give_back_unanswered": "A gateway or an asyncio client could not give back messages for "
        "which nobody waited any more. They come back when their leases run out.",
        "keyspace_has_one_copy": "The cluster has several nodes, but the keyspace keeps one copy "
        "of each message: if a node is lost, its messages are lost. Name the copies: cassieq "
        "bootstrap --replication DATACENTER=3, or ALTER KEYSPACE for a keyspace that exists.",
        "lane_passed_over": "One lane of a queue could not be looked at. The get went on with the "
        "other lanes.",
        "last_ack_failed": "The last batch of a query that ended could not be acked. The query's "
        "restart acks it.",
        "lease_lost_in_batch": "Leases of a running batch ran out. Another consumer processes its "
        "messages too.",
        "lease_lost_on_replay": "A restarted query found that messages of its batch were acked, or "
        "that another consumer holds them.",
        "lease_short": "Leases ran out before their batch could begin.",
        "leases_expired_while_reading": "Leases ran out while bodies were being read. Those "
        "messages were not handed out.",
        "node_clock_wrong": "A Cassandra node's clock differs from the other nodes' clocks by more "
        "than a second. Set it by NTP.",
        "paxos_variant_v1": "The cluster runs Paxos v1, which is not safe during range movements. "
        "Set paxos_variant to v2.",
        "pointer_not_advanced": "Cassandra did not answer for a pointer. The next look advances "
        "it.",
        "put_unproven": "It is unknown whether a put took effect. The caller gets PutAmbiguous.",
        "pyspark_zip_imported": "Spark runs a Python that imports PySpark from its zip, so this "
        "streaming query started about a second later. Set PYSPARK_PYTHON to what the event names.",
        "queue_left": "A query goes on without a queue that was deleted.",
        "queue_not_counted": "Cassandra did not answer for one queue of a scan. The queue has no "
        "metrics until the next scan.",
        "queue_passed_over": "Cassandra did not answer for one queue of a query. Its batch holds "
        "messages of the others.",
        "queue_purged": "All messages of a queue were dropped.",
        "queue_recreated": "A checkpoint goes on with a queue that was deleted and created anew.",
        "queues_unknown": "A query could not look for new queues. It goes on with those it knows, "
        "and looks again after half a minute.",
        "renewal_failed": "Leases could not be renewed. It is tried again in the next period.",
        "repair_failed": "A step of repair failed. The next pass tries it again.",
        "roll_forward_left_to_others": "A batch is committed but not visible yet. The next reader "
        "makes it visible.",
        "scan_failed": "The queues could not be counted for metrics. The process tries again.",
        "schedule_failed": "A schedule could not be filled. The next pass tries it again.",
        "schedule_unreachable": "It could not be read which scheduled messages are due. What was "
        "known was used, and it is read again soon.",
        "schedule_unsure": "Nothing is kept any more of messages of a schedule that were put "
        "over a month ago. They count as put.",
        "schedules_failed": "A pass over all schedules failed. The next one tries it again.",
        "settling_failed": "A sink's decision could not be read or carried out. Its messages wait.",
        "statement_retried": "Cassandra did not answer a statement, or could not run it. It is "
        "sent again. One a second is logged, with `left_out` others; at level DEBUG each. "
        "`cassieq` prints one line for an outage.",
        "transaction_aborted": "A bulk writer was silent for too long. Nothing of its transaction "
        "will be visible.",
        "worker_failed": "The function of a worker raised an error, took longer than its timeout, "
        "or its process died. The message was given back and comes again after the delay.",
        "worker_function_runs": "A worker's function has run for ten visibility timeouts, or twice "
        "as long as when that was told last. It may hang: without --timeout its lease is renewed "
        "for ever.",
        "worker_lease_failed": "A worker could not renew the lease of a message that it works on. "
        "It tries again.",
        "worker_lease_lost": "A worker's message was given to somebody else while the function "
        "worked on it. It will be worked on twice.",
        "worker_not_settled": "A worker could not give a message back. It comes again when its "
        "lease runs out.",
        "worker_process_failed": "A process of a worker ended before it could take a message. "
        "Another one is started.",
        "worker_rejected": "A function raised Reject. The message is dead, or dropped if its queue "
        "has no dead-letter queue.",
        "worker_stopped_function": "The function had not ended when the grace time of a stopping "
        "worker was over. Its process was killed and the message given back.",
    },
    logging.ERROR: {
        "bucket_row_corrupt": "A bucket's row cannot be read. Its messages are neither delivered "
        "nor dropped until the row is restored. Other buckets go on.",
        "key_unreadable": "The secret of a key cannot be decrypted. The server has another master "
        "key, or the row was altered. Requests with that key are refused.",
        "messages_unreadable": "Stored messages are not as they were put. They stay leased, and "
        "die when they are out of deliveries. Other messages go on.",
        "request_failed": "A gateway answered a request with 500: that is a bug. At level DEBUG, "
        "the next line has its traceback.",
    },
}

EVENTS: Final[dict[str, Event]] = {
    name: Event(level=level, meaning=meaning)
    for level, meanings in _MEANINGS.items()
    for name, meaning in meanings.items()
}
"""Every event by its name."""


def get_logger(layer: str) -> logging.Logger:
    """Return the logger ``cassieq_spark.<layer>``."""
    return logging.getLogger(f"cassieq_spark.{layer}")


def event(logger: logging.Logger, name: str, /, **fields: object) -> None:
    """Log one event; ``fields`` are in the text and in the attribute ``fields`` of the record.

    Raises:
        KeyError: The name is not in `EVENTS`: a mistake in this package.
    """
    known = EVENTS[name]
    if logger.isEnabledFor(known.level):
        text = "".join(f" {key}={_shown(value)}" for key, value in fields.items())
        extra = {"event": name, "fields": fields}
        is_deferred = threading.get_ident() == deferred.thread
        log = partial(deferred.log, logger) if is_deferred else logger.log
        log(known.level, "%s%s", name, text, extra=extra, stacklevel=2)


def _shown(value: object) -> str:
    """Quote a value whose blanks or line ends would make two fields, or two records, of one."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


DEFERRED_S: Final = 0.1
"""The time that a deferred record waits for a call that ends and writes it."""


class _Deferring:
    """Log records of a thread that must not wait for a program's log handlers.

    The next call of `write` writes them, or a thread does a moment later.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self._records: deque[tuple[logging.Logger, logging.LogRecord]] = deque()
        self._has_some = threading.Event()
        self._pause = threading.Event()  # never set

    def begin(self) -> None:
        """Defer this thread's records from now on: it runs an event loop, which must go on."""
        self._has_some = threading.Event()
        self.thread = threading.get_ident()
        threading.Thread(target=self._write, name="cassieq-log", daemon=True).start()

    def log(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        *args: object,
        extra: Mapping[str, object],
        stacklevel: int,
    ) -> None:
        """Make a record, as ``logger.log`` does, and keep it for later."""
        code = sys._getframe(stacklevel)  # noqa: SLF001 - as `logging` does
        where = code.f_code.co_filename, code.f_lineno
        self._records.append(
            (
                logger,
                logger.makeRecord(
                    logger.name, level, *where, text, args, None, code.f_code.co_name, extra
                ),
            )
        )
        self._has_some.set()

    def write(self) -> None:
        """Write the records that were kept."""
        while self._records:
            try:
                logger, record = self._records.popleft()
            except IndexError:
                return  # another thread writes them
            try:
                logger.handle(record)
            except Exception:  # noqa: BLE001 - a program's handler ends no call, and no thread
                if logging.raiseExceptions:
                    traceback.print_exc()

    def _write(self) -> None:
        while True:
            self._has_some.wait()
            self._has_some.clear()
            self._pause.wait(DEFERRED_S)
            self.write()


deferred: Final = _Deferring()


class Timed(logging.Formatter):
    """Format a record as a line that begins with its time in UTC, level and logger."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(Timed):
    """Format a record as JSON: time, level, logger, message; for events, name and fields.

    In a worker's processes also the id of the message that is worked on.
    """

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line."""
        found: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("event", "fields"):
            if hasattr(record, name):
                found[name] = getattr(record, name)
        message_id = getattr(record, "message_id", None)
        if message_id is not None:
            found["message_id"] = message_id
        if record.exc_text:
            found["traceback"] = record.exc_text
        elif record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def formatter(*, is_json: bool) -> logging.Formatter:
    """Return what makes lines of commands' logs."""
    return JsonLines() if is_json else Timed()
