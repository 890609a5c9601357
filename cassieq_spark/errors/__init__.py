"""Every exception of the package.

    CassieqError
    ├─ UsageError (ValueError)       OptionUnknown · OptionInvalid · BodyInvalid · ConnectorMissing
    │                                ServerMissing · FunctionInvalid · SparkMissing (ImportError)
    ├─ QueueError                    QueueNotFound · QueueExists · QueueInUse · QueueDeleted
    ├─ ReceiptError                  ReceiptInvalid (ValueError) · ReceiptExpired
    ├─ PutAmbiguous
    ├─ StoreError                    StoreUnavailable (AuthenticationRefused · TlsFailed)
    │                                StoreTimeout · CasAmbiguous · CasContention · RowCorrupt
    │                                SchemaMissing · SchemaMismatch (ReplicationDiffers)
    ├─ StreamError                   LeaseLost · DataLoss · OffsetUnreadable · SinkFenced
    │                                SinkIdReused · SinkDiverged · StreamFenced
    ├─ AccountError                  AccountNotFound · AccountExists · AccountInUse · KeyNotFound
    │                                TooManyKeys · MasterKeyInvalid
    ├─ AccessError                   AuthenticationFailed (RequestTimeSkewed) · AccessDenied
    └─ EnvironmentProblem            EmbeddedFailed · DiskFull · JavaNotFound · OutputFailed
                                     WorkerEnvironment

Spark carries text only across its boundary: class, attributes and cause are gone on the user's
side. So ``str(error)`` starts with ``[cassieq:<code>]`` and stands alone: what happened, which one,
what to do. A code is never renamed after a release. Every error pickles.
"""

from __future__ import annotations

from cassieq_spark.errors.access import (
    AccessDenied as AccessDenied,
)
from cassieq_spark.errors.access import (
    AccessError as AccessError,
)
from cassieq_spark.errors.access import (
    AccountError as AccountError,
)
from cassieq_spark.errors.access import (
    AccountExists as AccountExists,
)
from cassieq_spark.errors.access import (
    AccountInUse as AccountInUse,
)
from cassieq_spark.errors.access import (
    AccountNotFound as AccountNotFound,
)
from cassieq_spark.errors.access import (
    AuthenticationFailed as AuthenticationFailed,
)
from cassieq_spark.errors.access import (
    KeyNotFound as KeyNotFound,
)
from cassieq_spark.errors.access import (
    MasterKeyInvalid as MasterKeyInvalid,
)
from cassieq_spark.errors.access import (
    RequestTimeSkewed as RequestTimeSkewed,
)
from cassieq_spark.errors.access import (
    TooManyKeys as TooManyKeys,
)
from cassieq_spark.errors.base import CassieqError as CassieqError
from cassieq_spark.errors.environment import DiskFull as DiskFull
from cassieq_spark.errors.environment import EmbeddedFailed as EmbeddedFailed
from cassieq_spark.errors.environment import EnvironmentProblem as EnvironmentProblem
from cassieq_spark.errors.environment import JavaNotFound as JavaNotFound
from cassieq_spark.errors.environment import OutputFailed as OutputFailed
from cassieq_spark.errors.environment import WorkerEnvironment as WorkerEnvironment
from cassieq_spark.errors.queues import QueueDeleted as QueueDeleted
from cassieq_spark.errors.queues import QueueError as QueueError
from cassieq_spark.errors.queues import QueueExists as QueueExists
from cassieq_spark.errors.queues import QueueInUse as QueueInUse
from cassieq_spark.errors.queues import QueueNotFound as QueueNotFound


class UsageError(CassieqError, ValueError):
    """Mistakes of the caller, found before anything is written."""

    code = "usage"
    meaning = "The call is wrong, or the cluster's set-up does not support it."
    remedy = "Do what the message says."


class OptionUnknown(UsageError):
    """No option has that name."""

    code = "option_unknown"
    meaning = "An option is misspelt, or belongs to another scope."
    remedy = "Use the name that the message suggests, or one from the options reference."


class OptionInvalid(UsageError):
    """An option's value is out of its range or of another type."""

    code = "option_invalid"
    meaning = "An option has a value that is not allowed."
    remedy = "Use a value in the range that the message names."


class BodyInvalid(UsageError):
    """A message body is missing, of another type, or too large."""

    code = "body_invalid"
    meaning = "A message cannot be stored as it is."
    remedy = "Look at the row that the message names. Cast text to binary."


class ConnectorMissing(UsageError):
    """The Spark Cassandra Connector is not on the session's class path."""

    code = "connector_missing"
    meaning = (
        "The Spark Cassandra Connector, which `foreach_batch` writes through, is not on the "
        "class path of the Spark session."
    )
    remedy = "Start the session with the settings from cassieq_spark.spark_config(...)."


class ServerMissing(UsageError):
    """The packages of the gateway or of the exporter are not installed."""

    code = "server_missing"
    meaning = "A package that `cassieq serve` or `cassieq exporter` needs is not installed."
    remedy = "Run pip install 'cassieq_spark[server]'."


class SparkMissing(UsageError, ImportError):
    """A name of the package that needs Spark was used, and PySpark is not installed."""

    code = "spark_missing"
    meaning = "What was used needs PySpark, and this Python has none."
    remedy = (
        "Run pip install 'cassieq_spark[spark]'. On a cluster that brings its own PySpark, run the "
        "program by its spark-submit."
    )


class FunctionInvalid(UsageError):
    """The function that `cassieq worker` is to call was not found, or cannot be called."""

    code = "function_invalid"
    meaning = "The function that cassieq worker is to call cannot be imported or called."
    remedy = "Run it where the module can be imported. The function takes one message."


class ReceiptError(CassieqError):
    """Errors about a receipt."""


class ReceiptInvalid(ReceiptError, ValueError):
    """The text is not a receipt of this queue, or names a message that the queue never had.

    Attributes:
        refused: The receipts that name such messages, if the others were settled; empty: nothing
            was done.
        expired: Those of the others that `ReceiptExpired` would name.
    """

    code = "receipt_invalid"
    meaning = "A receipt is cut off or altered, is of another queue, or is not a receipt at all."
    remedy = "Pass receipts unchanged, as you got them."

    def __init__(
        self, message: str, *, refused: tuple[str, ...] = (), expired: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.refused = refused
        self.expired = expired


class ReceiptExpired(ReceiptError):
    """Nobody holds the messages of these receipts any more; ``refused`` names the receipts."""

    code = "receipt_expired"
    meaning = (
        "The delivery that a receipt stands for has ended: the visibility timeout was over, or "
        "the message has been released, updated, rejected or acked."
    )
    remedy = "Discard the result, or make the work idempotent. A longer visibility timeout helps."

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
    meaning = "It cannot be known whether a put took effect."
    remedy = "Look for the message id where messages are consumed before you put it again."

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
    meaning = "No node could take the statement, or too few replicas were up for a quorum."
    remedy = "Bring nodes back up. The same client then recovers by itself."


class StoreTimeout(StoreError):
    """A read or an idempotent write was not answered in time."""

    code = "store_timeout"
    retriable = True
    meaning = "A statement was not answered, even after all its retries."
    remedy = "Try again. Look at the cluster's load."


class CasAmbiguous(StoreError):
    """A compare-and-set stayed unanswered although it was sent again several times."""

    code = "cas_ambiguous"
    meaning = "It is unknown whether a conditional write took effect."
    remedy = (
        "Nothing is lost: leases run out, and whoever comes next decides open transactions. A "
        "df.write without an id may be in the queue already: look before you write it again."
    )


class CasContention(StoreError):
    """A compare-and-set lost against others many times in a row."""

    code = "cas_contention"
    retriable = True
    meaning = "Too many clients change the same row at the same time."
    remedy = "Try again. Use larger batches, prefetching, or fewer clients."


class SchemaMissing(StoreError):
    """The keyspace or its tables do not exist."""

    code = "schema_missing"
    meaning = "The keyspace or its tables do not exist."
    remedy = "Call client.bootstrap(replication=...) once."


class SchemaMismatch(StoreError):
    """The tables, or the cluster's settings, do not fit this release."""

    code = "schema_mismatch"
    meaning = (
        "The keyspace has another schema version, or the cluster forbids something that this "
        "package needs."
    )
    remedy = (
        "Use the matching release, migrate the keyspace, or change the setting that the message "
        "names."
    )


class ReplicationDiffers(SchemaMismatch):
    """The keyspace exists with another replication than the one asked for."""

    code = "replication_differs"
    meaning = "The keyspace exists with another replication than `bootstrap` was asked for."
    remedy = "Leave the replication out, or alter the keyspace as the message says."


class RowCorrupt(StoreError):
    """A stored value cannot be what this package wrote."""

    code = "row_corrupt"
    meaning = "Something else has altered a row or a chunk, or a rule of the protocol was broken."
    remedy = "Stop the consumers of that queue, run a verify pass, and report it."


class AuthenticationRefused(StoreUnavailable):
    """The nodes refuse this role, or ask for a login where none was given."""

    code = "authentication_refused"
    retriable = False
    meaning = "A node asks for a login and got none, or it refused the login that it got."
    remedy = (
        "Set username and password, and check that the role exists and may log in. A client that "
        "runs recovers by itself when its login is right again."
    )


class TlsFailed(StoreUnavailable):
    """A node and this client cannot agree on an encrypted connection."""

    code = "tls_failed"
    retriable = False
    meaning = "One side does not speak TLS, or does not accept the other's certificate."
    remedy = (
        "Do what the message says. docs/operations/security.md describes the set-up of both sides."
    )


class StreamError(CassieqError):
    """Errors of a streaming query or of a sink's transaction."""


class LeaseLost(StreamError):
    """Messages of a replayed batch were delivered to somebody else meanwhile."""

    code = "lease_lost"
    meaning = (
        "The query was down for longer than its visibility timeout, and another consumer has "
        "messages of its batch."
    )
    remedy = "Set onLeaseLost to skip, or use a longer visibilityTimeout."


class DataLoss(StreamError):
    """Messages that a checkpoint names are gone for good."""

    code = "data_loss"
    meaning = "The queue was purged, or deleted and created anew, since the checkpoint was written."
    remedy = "Start with a new checkpoint, or set failOnDataLoss to false."


class OffsetUnreadable(StreamError):
    """A checkpoint's offset belongs to another source or to a later release."""

    code = "offset_unreadable"
    meaning = "The checkpoint was written by another source, or by a newer release."
    remedy = "Use the release that wrote it, or start with a new checkpoint."


class SinkFenced(StreamError):
    """Another run, or an abort, has ended this transaction; nothing of it is visible."""

    code = "sink_fenced"
    meaning = "Another run has taken over a sink's transaction, or the transaction was aborted."
    remedy = "Restart the query. If two queries run on one checkpoint, stop one of them."

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class SinkIdReused(StreamError):
    """One sink id is used by two queries, queues, checkpoints or writes of one batch."""

    code = "sink_id_reused"
    meaning = "The sink id belongs to another query, queue, checkpoint or write."
    remedy = (
        "Use another sinkId, or stop the query that owns this one. Call "
        "client.forget_sink(queue, sink_id) only if that query is gone for good."
    )

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class SinkDiverged(StreamError):
    """A batch is older than the last one committed."""

    code = "sink_diverged"
    meaning = (
        "Two queries run on one checkpoint, or the checkpoint is a copy or was restored from an "
        "older backup."
    )
    remedy = (
        "If another query runs on the checkpoint, stop one of the two. If none does, start from "
        "the newest checkpoint, or call client.forget_sink(queue, sink_id): the queue may then "
        "get messages twice."
    )

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class StreamFenced(StreamError):
    """Another run of this checkpoint has taken over the leases."""

    code = "stream_fenced"
    meaning = "Two queries run on one checkpoint, or on copies of it."
    remedy = "Stop one of them."
