"""Every exception of the package.

    CassieqError
    ├─ UsageError (ValueError)       OptionUnknown · OptionInvalid · BodyInvalid · ConnectorMissing
    ├─ QueueError                    QueueNotFound · QueueExists · QueueDeleted
    ├─ ReceiptError                  ReceiptInvalid (ValueError) · ReceiptExpired
    ├─ PutAmbiguous
    ├─ StoreError                    StoreUnavailable · StoreTimeout · CasAmbiguous · CasContention
    │                                SchemaMissing · SchemaMismatch (ReplicationDiffers)
    │                                RowCorrupt
    │                                AuthenticationRefused · TlsFailed
    ├─ StreamError                   LeaseLost · DataLoss · OffsetUnreadable · SinkFenced
    │                                SinkIdReused · SinkDiverged · StreamFenced
    └─ EnvironmentProblem            EmbeddedFailed · JavaNotFound · OutputFailed
                                     WorkerEnvironment

Spark carries text only across its boundary: class, attributes and cause are gone on the user's
side. So ``str(error)`` starts with ``[cassieq:<code>]`` and stands alone: what happened, which one,
what to do. A code is never renamed after a release. Every error pickles.
"""

from __future__ import annotations

from typing import ClassVar


class CassieqError(Exception):
    """Base class of all errors of this package.

    Attributes:
        code: Stable name in lower snake case.
        retriable: Whether the same call may succeed later without anybody doing anything.
        meaning: One sentence for the reference.
        remedy: One sentence for the reference.
    """

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    meaning: ClassVar[str] = ""
    remedy: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Begin with the code, so that it survives as text."""
        return f"[cassieq:{self.code}] {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message by position, the data as state: keyword-only data would fail."""
        return type(self), (self.message,), self.__dict__.copy()


class UsageError(CassieqError, ValueError):
    """Mistakes of the caller, found before anything is written."""

    code = "usage"
    meaning = "The call or the cluster's set-up does not fit."
    remedy = "Do as the message says."


class OptionUnknown(UsageError):
    """No option has that name."""

    code = "option_unknown"
    meaning = "An option is misspelt or belongs to another scope."
    remedy = "Use the name the message suggests, or one of the options reference."


class OptionInvalid(UsageError):
    """An option's value is out of its range or of another type."""

    code = "option_invalid"
    meaning = "An option has a value it cannot have."
    remedy = "Use a value of the range that the message names."


class BodyInvalid(UsageError):
    """A message body is missing, of another type, or too large."""

    code = "body_invalid"
    meaning = "A message cannot be stored as it is."
    remedy = "Look at the row that the message names; cast text to binary."


class ConnectorMissing(UsageError):
    """The Spark Cassandra Connector is not on the session's class path."""

    code = "connector_missing"
    meaning = "What `foreach_batch` writes through is not on the class path of the Spark session."
    remedy = "Start the session with the settings of cassieq_spark.spark_config(...)."


class QueueError(CassieqError):
    """Errors about a queue as a whole."""


class QueueNotFound(QueueError):
    """No queue has that name."""

    code = "queue_not_found"
    meaning = "No queue of that name is in the keyspace."
    remedy = "Create it, or look for a misspelt name with client.queues()."


class QueueExists(QueueError):
    """The queue exists with other settings; ``differences`` names them."""

    code = "queue_exists"
    meaning = "A queue of that name has other settings than asked for."
    remedy = "Open it with client.queue(), or choose another name."

    def __init__(self, message: str, *, queue: str = "", differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.queue = queue
        self.differences = differences


class QueueDeleted(QueueError):
    """The queue was deleted while it was in use."""

    code = "queue_deleted"
    meaning = "The queue was deleted while it was open."
    remedy = "Open it again if it was created anew; else stop."


class ReceiptError(CassieqError):
    """Errors about a receipt."""


class ReceiptInvalid(ReceiptError, ValueError):
    """The text is not a receipt of this queue."""

    code = "receipt_invalid"
    meaning = "A receipt is truncated, altered, of another queue, or no receipt at all."
    remedy = "Pass receipts as they were got, unchanged."


class ReceiptExpired(ReceiptError):
    """Nobody holds the messages of these receipts any more; ``refused`` names the receipts."""

    code = "receipt_expired"
    meaning = (
        "The delivery that a receipt is of has ended: its time was over, or the message was "
        "released, updated, rejected or acked since."
    )
    remedy = "Drop the result, or make the work idempotent; a longer visibility timeout helps."

    def __init__(self, message: str, *, refused: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


class PutAmbiguous(CassieqError):
    """Messages may have been stored, or even delivered; ``message_ids`` names them.

    Attributes:
        message_ids: The messages whose outcome is unknown.
        stored: Messages of the same call that will be delivered. The rest was not stored.
    """

    code = "put_ambiguous"
    meaning = "The outcome of a put cannot be known."
    remedy = "Look for the message id where it is consumed before you put it again."

    def __init__(
        self, message: str, *, message_ids: tuple[str, ...] = (), stored: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message_ids = message_ids
        self.stored = stored


class StoreError(CassieqError):
    """Errors of Cassandra, each raised from the driver's own exception."""


class StoreUnavailable(StoreError):
    """Cassandra does not answer, or too few replicas do."""

    code = "store_unavailable"
    retriable = True
    meaning = "No node, or too few replicas for a quorum, could take the statement."
    remedy = "Bring nodes back; the same client recovers by itself."


class StoreTimeout(StoreError):
    """A read or an idempotent write was not answered in time."""

    code = "store_timeout"
    retriable = True
    meaning = "A statement stayed unanswered through all its retries."
    remedy = "Try again; look at the cluster's load."


class CasAmbiguous(StoreError):
    """A compare-and-set stayed unanswered although it was sent again several times."""

    code = "cas_ambiguous"
    meaning = "It is unknown whether a conditional write took effect."
    remedy = (
        "Nothing is lost: leases run out and transactions are decided by whoever comes next. A "
        "df.write without an id may be in the queue: look before you write it again."
    )


class CasContention(StoreError):
    """A compare-and-set lost against others many times in a row."""

    code = "cas_contention"
    retriable = True
    meaning = "Too many clients change the same row."
    remedy = "Try again; use larger batches, prefetch, or fewer clients."


class SchemaMissing(StoreError):
    """The keyspace or its tables do not exist."""

    code = "schema_missing"
    meaning = "The keyspace was not bootstrapped."
    remedy = "Call client.bootstrap(replication=...) once."


class SchemaMismatch(StoreError):
    """The tables, or the cluster's settings, do not fit this release."""

    code = "schema_mismatch"
    meaning = "The keyspace is of another schema version, or the cluster forbids what is needed."
    remedy = "Use the matching release, migrate, or change the setting that the message names."


class ReplicationDiffers(SchemaMismatch):
    """The keyspace exists with another replication than the one asked for."""

    code = "replication_differs"
    meaning = "The keyspace is there with another replication than `bootstrap` was asked for."
    remedy = "Leave the replication out, or alter the keyspace as the message says."


class RowCorrupt(StoreError):
    """A stored value cannot be what this package wrote."""

    code = "row_corrupt"
    meaning = "A row or chunk was altered from outside, or a rule of the protocol was broken."
    remedy = "Stop consumers of that queue and run a verify pass; report it."


class AuthenticationRefused(StoreError):
    """The nodes refuse this role, or ask for a login where none was given."""

    code = "authentication_refused"
    meaning = "A node wants a login and got none, or refused the one it got."
    remedy = "Set username and password; look for a role that may not log in or was renamed."


class TlsFailed(StoreError):
    """A node and this client cannot agree on an encrypted connection."""

    code = "tls_failed"
    meaning = "One side does not speak TLS, or does not accept the other's certificate."
    remedy = "Do as the message says; docs/operations/security.md has the set-up of both sides."


class StreamError(CassieqError):
    """Errors of a streaming query or of a sink's transaction."""


class LeaseLost(StreamError):
    """Messages of a replayed batch were delivered to somebody else meanwhile."""

    code = "lease_lost"
    meaning = "The query was down longer than its visibility timeout."
    remedy = "Use onLeaseLost=skip, or a longer visibilityTimeout."


class DataLoss(StreamError):
    """Messages that a checkpoint names are gone for good."""

    code = "data_loss"
    meaning = "The queue was deleted, re-created or purged under a checkpoint."
    remedy = "Start with a new checkpoint, or set failOnDataLoss to false."


class OffsetUnreadable(StreamError):
    """A checkpoint's offset belongs to another source or to a later release."""

    code = "offset_unreadable"
    meaning = "The checkpoint was not written by this source, or by a newer release."
    remedy = "Use the release that wrote it, or a new checkpoint."


class SinkFenced(StreamError):
    """Another run, or an abort, has ended this transaction; nothing of it is visible."""

    code = "sink_fenced"
    meaning = "A sink's transaction was overtaken or aborted."
    remedy = "Restart the query; if two run on one checkpoint, stop one."

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class SinkIdReused(StreamError):
    """One sink id is used by two queries, queues, checkpoints or writes of one batch."""

    code = "sink_id_reused"
    meaning = "A sink id has another owner."
    remedy = (
        "Use another sinkId, or client.forget_sink(queue, sink_id) if the owner is gone for good."
    )

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class SinkDiverged(StreamError):
    """A batch is older than the last one committed."""

    code = "sink_diverged"
    meaning = "A checkpoint was restored from an older backup, or is a copy."
    remedy = "Start from the newest checkpoint, or call client.forget_sink(queue, sink_id)."

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class StreamFenced(StreamError):
    """Another run of this checkpoint has taken over the leases."""

    code = "stream_fenced"
    meaning = "Two queries run on one checkpoint or on copies of it."
    remedy = "Stop one of them."


class EnvironmentProblem(CassieqError):
    """Errors about the machine that a program runs on."""


class EmbeddedFailed(EnvironmentProblem):
    """An embedded Cassandra node did not obey; the end of its log is in the message."""

    code = "embedded_failed"
    meaning = "An embedded Cassandra node did not start or stop."
    remedy = "Read the end of its log in the message."


class JavaNotFound(EnvironmentProblem):
    """No Java of a suitable version was found."""

    code = "java_not_found"
    meaning = "Cassandra or Spark needs a Java that is not there."
    remedy = "Install Java 17 or set JAVA_HOME."


class OutputFailed(EnvironmentProblem):
    """A command could not write to standard output or to its report file."""

    code = "output_failed"
    meaning = "What a command prints could not be written: the disk is full, or nothing is there."
    remedy = "Free space, or write elsewhere; what the command did before stays done."


class WorkerEnvironment(EnvironmentProblem):
    """The Python that Spark runs lacks something."""

    code = "worker_environment"
    meaning = "Spark's Python workers run another interpreter than the driver, or lack a package."
    remedy = "Set PYSPARK_PYTHON to the interpreter that has cassieq_spark, on every node."
