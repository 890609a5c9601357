"""Every exception of the package.

    CassieqError
    ├─ UsageError (ValueError)       OptionUnknown · OptionInvalid · BodyInvalid · ConnectorMissing
    │                                ClientClosed · ServerMissing · FunctionInvalid
    │                                SparkMissing (ImportError)
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

from copy import copy
from typing import ClassVar, TypeVar

E = TypeVar("E", bound=Exception)


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


def copied(error: E) -> E:
    """Copy an error to raise it once more, as other callers raise the original at the same time."""
    found = copy(error).with_traceback(error.__traceback__)
    found.__cause__ = error.__cause__
    return found


class UsageError(CassieqError, ValueError):
    """Mistakes of the caller, found before anything is written."""

    code = "usage"
    meaning = "The call is wrong, or the cluster's set-up does not support it."
    remedy = "Do what the message says."


class ClientClosed(UsageError):
    """The client, or its consumer, was closed before the call or during it."""

    code = "client_closed"
    meaning = "The client was closed before the call, or while it ran."
    remedy = "Connect again. Keep the client open for as long as its queues are in use."


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


class AccountError(CassieqError):
    """Errors about an account or its keys, as their administrator meets them."""


class AccountNotFound(AccountError):
    """No account has that name."""

    code = "account_not_found"
    meaning = "The keyspace has no account of that name."
    remedy = "Create the account, or look for a misspelt name: cassieq account list."


class AccountExists(AccountError):
    """An account of that name exists already."""

    code = "account_exists"
    meaning = "An account of that name exists already, so it was not created."
    remedy = "Make a further key for it with cassieq account new-key, or choose another name."


class AccountInUse(AccountError):
    """The account still has queues."""

    code = "account_in_use"
    meaning = "An account that has queues is not deleted without them."
    remedy = "Delete its queues first, or give --with-queues to delete them too."


class KeyNotFound(AccountError):
    """The account has no key of that id."""

    code = "key_not_found"
    meaning = "The account has no key of that id."
    remedy = "Look for the id with cassieq account keys."


class TooManyKeys(AccountError):
    """The account has as many keys as it may have."""

    code = "too_many_keys"
    meaning = "An account has a limited number of keys, and this one has all of them."
    remedy = "Delete a key that nobody uses. The listing of keys says when each was last used."


class MasterKeyInvalid(AccountError):
    """The master key's file is missing, unsafe, malformed, or of another installation."""

    code = "master_key_invalid"
    meaning = "The file of the master key cannot be used."
    remedy = "Do what the message says. cassieq account master-key makes such a file."


class AccessError(CassieqError):
    """Errors about who asks, and what they may do."""


class AuthenticationFailed(AccessError):
    """A request does not prove who sent it.

    Attributes:
        reason: ``missing``, ``malformed``, ``unsupported``, ``skewed``, ``expired``, ``refused``
            (the key is unknown or disabled, which are not told apart, or did not sign the token)
            or ``signature`` (the key is known, and did not sign the request).
    """

    code = "authentication_failed"
    meaning = "A request has no signature or token, or one that is not accepted."
    remedy = "Sign the request with a key of an account, or use a token that has not expired."

    def __init__(self, message: str, *, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


class RequestTimeSkewed(AuthenticationFailed):
    """A request was signed at another time than now, by more than 15 minutes."""

    code = "request_time_skewed"
    meaning = "The time in a signed request differs from the server's by more than 15 minutes."
    remedy = "Set the clock of the machine that signs. Then sign the request again."

    def __init__(self, message: str, *, reason: str = "skewed") -> None:
        super().__init__(message, reason=reason)


class AccessDenied(AccessError):
    """A key or token lacks a right; ``right`` and ``queue`` name what is missing."""

    code = "access_denied"
    meaning = "The key or token does not have the right that the request needs."
    remedy = "Use a key that has the right, or ask whoever administers the account."

    def __init__(self, message: str, *, right: str = "", queue: str = "") -> None:
        super().__init__(message)
        self.right = right
        self.queue = queue


class EnvironmentProblem(CassieqError):
    """Errors about the machine that a program runs on."""


class EmbeddedFailed(EnvironmentProblem):
    """An embedded Cassandra node did not obey; the end of its log is in the message."""

    code = "embedded_failed"
    meaning = "An embedded Cassandra node did not start or stop."
    remedy = "Read the end of its log, which is in the message."


class DiskFull(EnvironmentProblem):
    """A disk has too little free space for what is about to begin there."""

    code = "disk_full"
    meaning = "A disk has too little free space for an embedded Cassandra node, or for its jars."
    remedy = "Free space there, or name another directory."


class JavaNotFound(EnvironmentProblem):
    """No Java of a suitable version was found."""

    code = "java_not_found"
    meaning = "Cassandra or Spark needs a version of Java that was not found."
    remedy = "Install Java 17, or set JAVA_HOME."


class OutputFailed(EnvironmentProblem):
    """A command could not write to standard output or to its report file."""

    code = "output_failed"
    meaning = (
        "A command could not write its output: the disk is full, or standard output is closed."
    )
    remedy = "Free space, or write to another place. What the command did before stays done."


class WorkerEnvironment(EnvironmentProblem):
    """The Python that Spark runs lacks something."""

    code = "worker_environment"
    meaning = "Spark's Python workers run another interpreter than the driver, or lack a package."
    remedy = "On every node, set PYSPARK_PYTHON to the interpreter that has cassieq_spark."
