"""Every exception of the package.

    CassieqError
    ├─ UsageError (ValueError)       OptionUnknown · OptionInvalid · BodyInvalid · SettingFixed
    │                                DeadLetterCycle · ConnectorMissing · ServerMissing
    │                                FunctionInvalid · SparkMissing (ImportError)
    ├─ ClientClosed · PutAmbiguous
    ├─ QueueError                    QueueNotFound · QueueExists · QueueInUse · QueueDeleted
    ├─ ScheduleError                 ScheduleNotFound · ScheduleExists
    ├─ ReceiptError                  ReceiptInvalid (ValueError) · ReceiptExpired
    ├─ StoreError                    CasAmbiguous · CasContention · RowCorrupt · SchemaMissing
    │                                SchemaMismatch (ReplicationDiffers)
    │                                StoreTimeout (TimeoutError)
    │                                StoreUnavailable (ConnectionError), of which
    │                                CassandraLoginFailed · TlsFailed
    ├─ StreamError                   LeaseLost · DataLoss · OffsetUnreadable · StreamFenced
    │                                SinkError (SinkFenced · SinkIdReused · SinkDiverged)
    ├─ AccountError                  AccountNotFound · AccountExists · AccountInUse · KeyNotFound
    │                                TooManyKeys · MasterKeyInvalid
    ├─ AccessError                   AuthenticationFailed (RequestTimeSkewed) · AccessDenied
    └─ HostError     EmbeddedFailed · DiskFull · JavaNotFound · OutputFailed · WorkerEnvironment

The text stands alone, and begins with ``[cassieq:<code>]``. No code is ever renamed; all pickle.
"""

from __future__ import annotations

import re
from typing import ClassVar


class CassieqError(Exception):
    """Base class of all errors of this package.

    Attributes:
        code: Stable name in lower snake case, which is the class's name. Bases have none.
        retriable: Whether the same call may succeed later without anybody doing anything.
        meaning: The class's docstring up to its first part, for the reference and for HTTP.
        remedy: The part of the docstring with that title, for the reference.
    """

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    meaning: ClassVar[str] = ""
    remedy: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Name the code of an error that is no base, and take its texts from its docstring."""
        is_base = cls.__name__.endswith("Error")
        if not is_base and "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if not is_base or "code" in vars(cls):
            meaning, *parts = re.split(r"\n\n +(?=\w+:\n)", cls.__doc__ or "")
            named = dict(part.split(":\n", 1) for part in parts)
            cls.meaning = " ".join(meaning.split())
            cls.remedy = " ".join(named.get("Remedy", "").split())

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
    """Mistakes of the caller, or of the cluster's set-up, found before anything is written.

    Remedy:
        Do what the message says.
    """

    code = "usage"


class OptionUnknown(UsageError):
    """An option is misspelt, or belongs to another scope.

    Remedy:
        Use the name that the message suggests, or one from the options reference.
    """


class OptionInvalid(UsageError):
    """An option has a value that is not allowed.

    Remedy:
        Use a value in the range that the message names.
    """


class BodyInvalid(UsageError):
    """A message cannot be stored as it is.

    Remedy:
        Look at the row that the message names. Cast text to binary.
    """


class ConnectorMissing(UsageError):
    """The Spark Cassandra Connector, which `foreach_batch` needs, is not on Spark's class path.

    Remedy:
        Start the session with the settings from cassieq_spark.spark.spark_config(...).
    """


class ServerMissing(UsageError):
    """A package that `cassieq serve` or `cassieq exporter` needs is not installed.

    Remedy:
        Run pip install 'cassieq_spark[server]'.
    """


class SparkMissing(UsageError, ImportError):
    """The feature that was used needs PySpark, which is not installed.

    Remedy:
        Run pip install 'cassieq_spark[spark]'. On a cluster that brings its own PySpark, run the
        program by its spark-submit.
    """


class FunctionInvalid(UsageError):
    """The function that cassieq worker is to call cannot be imported or called.

    Remedy:
        Run it where the module can be imported. The function takes one message.
    """


class SettingFixed(UsageError):
    """A setting of a queue cannot change: where the stored messages are depends on it.

    Remedy:
        Leave the setting out, or create another queue with the new value.
    """


class DeadLetterCycle(UsageError):
    """The dead-letter queues would form a cycle, in which a dead message would never rest.

    Remedy:
        Choose a dead-letter queue from which no chain of dead-letter queues leads back.
    """


class ClientClosed(CassieqError):
    """The client was closed before the call, or while it ran.

    Remedy:
        Connect again. Keep the client open for as long as its queues are in use.
    """


class QueueError(CassieqError):
    """Errors about a queue as a whole."""


class QueueNotFound(QueueError):
    """The keyspace has no queue of that name.

    Remedy:
        Create the queue, or look for a misspelt name: client.queues() lists all names.
    """


class QueueExists(QueueError):
    """A queue of that name exists, and settings that you named have other values there.

    Remedy:
        Leave them out, change the queue with client.alter_queue(), or choose another name.

    Attributes:
        differences: Each setting, with its value here and there.
    """

    def __init__(self, message: str, *, queue: str = "", differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.queue = queue
        self.differences = differences


class QueueInUse(QueueError):
    """The queue was not deleted, because it is in use or not empty.

    Another queue names it as its dead-letter queue, or it holds messages and the call was to
    delete it only if it holds none.

    Remedy:
        Do what the message says.
    """


class QueueDeleted(QueueError):
    """The queue was deleted while it was open.

    Remedy:
        Open the queue again if it was created anew. Otherwise stop.
    """


class ScheduleError(CassieqError):
    """Errors about a schedule."""


class ScheduleNotFound(ScheduleError):
    """No schedule has that name.

    Remedy:
        Create it, or look for a misspelt name: client.schedules.list() has all names.
    """


class ScheduleExists(ScheduleError):
    """A schedule of that name exists, with another definition or for another queue.

    Remedy:
        Alter it, delete it, or choose another name.
    """


class ReceiptError(CassieqError):
    """Errors about a receipt."""


class ReceiptInvalid(ReceiptError, ValueError):
    """A receipt is cut off or altered, is of another queue, or is not a receipt at all.

    Remedy:
        Pass receipts unchanged, as you got them.

    Attributes:
        refused: The receipts that name such messages, if the others were settled; empty: nothing
            was done.
        expired: Those of the others that `ReceiptExpired` would name.
    """

    def __init__(
        self, message: str, *, refused: tuple[str, ...] = (), expired: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.refused = refused
        self.expired = expired


class ReceiptExpired(ReceiptError):
    """The delivery that a receipt stands for has ended.

    The visibility timeout was over, or the message has been released, updated, rejected or acked.

    Remedy:
        Discard the result, or make the work idempotent. A longer visibility timeout helps.

    Attributes:
        refused: The receipts.
    """

    def __init__(self, message: str, *, refused: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


class PutAmbiguous(CassieqError):
    """The outcome of a put is unknown: messages may have been stored, or even delivered.

    Remedy:
        Look for the message id where messages are consumed before you put it again.

    Attributes:
        message_ids: The messages whose outcome is unknown.
        stored: Messages of the same call that will be delivered. The rest was not stored.
    """

    def __init__(
        self, message: str, *, message_ids: tuple[str, ...] = (), stored: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message_ids = message_ids
        self.stored = stored


class StoreError(CassieqError):
    """Errors of Cassandra, each raised from the driver's own exception."""


class StoreUnavailable(StoreError, ConnectionError):
    """No node could take the statement, or too few replicas were up for a quorum.

    Remedy:
        Bring nodes back up. The same client then recovers by itself.
    """

    retriable = True


class StoreTimeout(StoreError, TimeoutError):
    """A statement was not answered, even after all its retries.

    Remedy:
        Try again. Look at the cluster's load.
    """

    retriable = True


class CasAmbiguous(StoreError):
    """The outcome of a conditional write is unknown.

    Remedy:
        Nothing is lost: leases run out, and whoever comes next decides open transactions. A
        df.write without an id may be in the queue already: look before you write it again.
    """


class CasContention(StoreError):
    """Too many clients change the same row at the same time.

    Remedy:
        Try again. Use larger batches, prefetching, or fewer clients.
    """

    retriable = True


class SchemaMissing(StoreError):
    """The keyspace or its tables do not exist.

    Remedy:
        Call client.bootstrap(replication=...) once.
    """


class SchemaMismatch(StoreError):
    """The tables, or the cluster's settings, do not fit this release.

    The keyspace has another schema version, or the cluster forbids what this package needs.

    Remedy:
        Use the matching release, migrate the keyspace, or change the setting that the message
        names.
    """


class ReplicationDiffers(SchemaMismatch):
    """The keyspace exists with another replication than `bootstrap` was asked for.

    Remedy:
        Leave the replication out, or alter the keyspace as the message says.
    """


class RowCorrupt(StoreError):
    """A row or a chunk was altered from outside, or a rule of the protocol was broken.

    Remedy:
        Stop the consumers of that queue, run a verify pass, and report it.
    """


class CassandraLoginFailed(StoreUnavailable):
    """A node asks for a login and got none, or it refused the login that it got.

    Remedy:
        Set username and password, and check that the role exists and may log in. A client that runs
        recovers by itself when its login is right again.
    """

    retriable = False


class TlsFailed(StoreUnavailable):
    """Client and node cannot agree on TLS: one speaks none, or refuses the other's certificate.

    Remedy:
        Do what the message says. docs/operations/security.md describes the set-up of both sides.
    """

    retriable = False


class StreamError(CassieqError):
    """Errors of a streaming query or of a sink's transaction."""


class LeaseLost(StreamError):
    """Another consumer has messages of a restarted query's batch.

    The query was down for longer than its visibility timeout.

    Remedy:
        Set onLeaseLost to skip, or use a longer visibilityTimeout.
    """


class DataLoss(StreamError):
    """The queue was purged, or deleted and created anew, since the checkpoint was written.

    Remedy:
        Start with a new checkpoint, or set failOnDataLoss to false.
    """


class OffsetUnreadable(StreamError):
    """The checkpoint was written by another source, or by a newer release.

    Remedy:
        Use the release that wrote it, or start with a new checkpoint.
    """


class SinkError(StreamError):
    """Errors of a sink's transaction; ``sink_id`` names it."""

    def __init__(self, message: str, *, sink_id: str = "") -> None:
        super().__init__(message)
        self.sink_id = sink_id


class SinkFenced(SinkError):
    """Another run has taken over a sink's transaction, or the transaction was aborted.

    Remedy:
        Restart the query. If two queries run on one checkpoint, stop one of them.
    """


class SinkIdReused(SinkError):
    """The sink id belongs to another query, queue, checkpoint or write.

    Remedy:
        Use another sinkId, or stop the query that owns this one. Call client.forget_sink(queue,
        sink_id) only if that query is gone for good.
    """


class SinkDiverged(SinkError):
    """Two queries run on one checkpoint, or it is a copy, or was restored from an older backup.

    Remedy:
        If another query runs on the checkpoint, stop one of the two. If none does, start from the
        newest checkpoint, or client.forget_sink(queue, sink_id): it may get messages twice.
    """


class StreamFenced(StreamError):
    """Two queries run on one checkpoint, or on copies of it.

    Remedy:
        Stop one of them.
    """


class AccountError(CassieqError):
    """Errors about an account or its keys, as their administrator meets them."""


class AccountNotFound(AccountError):
    """The keyspace has no account of that name.

    Remedy:
        Create the account, or look for a misspelt name: cassieq account list.
    """


class AccountExists(AccountError):
    """An account of that name exists already, so it was not created.

    Remedy:
        Make a further key for it with cassieq account new-key, or choose another name.
    """


class AccountInUse(AccountError):
    """The account still owns queues.

    Remedy:
        Delete its queues first, or give --with-queues to delete them too.
    """


class KeyNotFound(AccountError):
    """The account has no key of that id.

    Remedy:
        Look for the id with cassieq account keys.
    """


class TooManyKeys(AccountError):
    """The account has reached its key limit.

    Remedy:
        Delete a key that nobody uses. The listing of keys says when each was last used.
    """


class MasterKeyInvalid(AccountError):
    """The file of the master key cannot be used.

    Remedy:
        Do what the message says. cassieq account master-key makes such a file.
    """


class AccessError(CassieqError):
    """Errors of authentication and of rights."""


class AuthenticationFailed(AccessError):
    """A request has no signature or token, or one that is not accepted.

    Remedy:
        Sign the request with a key of an account, or use a token that has not expired.

    Attributes:
        reason: ``missing``, ``malformed``, ``unsupported``, ``skewed``, ``expired``, ``refused``
            (an unknown or disabled key, or one that did not sign the token) or ``signature``.
    """

    def __init__(self, message: str, *, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


class RequestTimeSkewed(AuthenticationFailed):
    """The time in a signed request differs from the server's by more than 15 minutes.

    Remedy:
        Set the clock of the machine that signs. Then sign the request again.
    """

    def __init__(self, message: str, *, reason: str = "skewed") -> None:
        super().__init__(message, reason=reason)


class AccessDenied(AccessError):
    """The key or token does not have the right that the request needs.

    Remedy:
        Use a key that has the right, or ask whoever administers the account.

    Attributes:
        right, queue: What is missing.
    """

    def __init__(self, message: str, *, right: str = "", queue: str = "") -> None:
        super().__init__(message)
        self.right = right
        self.queue = queue


class HostError(CassieqError):
    """Errors about the machine that a program runs on."""


class EmbeddedFailed(HostError):
    """An embedded Cassandra node did not start or stop.

    Remedy:
        Read the end of its log, which is in the message.
    """


class DiskFull(HostError):
    """A disk has too little free space for an embedded Cassandra node, or for its jars.

    Remedy:
        Free space there, or name another directory.
    """


class JavaNotFound(HostError):
    """Cassandra or Spark needs a version of Java that was not found.

    Remedy:
        Install Java 17, or set JAVA_HOME.
    """


class OutputFailed(HostError):
    """A command could not write its output: the disk is full, or standard output is closed.

    Remedy:
        Free space, or write to another place. What the command did before stays done.
    """


class WorkerEnvironment(HostError):
    """Spark's Python workers run another interpreter than the driver, or lack a package.

    Remedy:
        On every node, set PYSPARK_PYTHON to the interpreter that has cassieq_spark.
    """
