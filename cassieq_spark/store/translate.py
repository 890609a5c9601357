"""Driver errors into ours: the only place that decides what a failure may have left behind."""

from __future__ import annotations

from typing import Final

from cassandra import (
    AuthenticationFailed,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    RequestValidationException,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ErrorMessage
from cassandra.protocol import RequestValidationException as RequestInvalid

from cassieq_spark.errors import (
    CassieqError,
    SchemaMissing,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
)

DRIVER_ERRORS: Final = (
    DriverException,
    NoHostAvailable,
    ErrorMessage,
    ConnectionException,
    UnresolvableContactPoints,
    OSError,
)
"""All that a statement can raise; our own errors are none of these."""


def is_refusal(error: BaseException) -> bool:
    """Whether the server looked at the statement and would not run it: nothing was applied.

    All else that a CAS can fail with is ambiguous: a timeout, a lost connection, and also
    "unavailable", which Cassandra may raise for the commit after the proposal was accepted.
    """
    return isinstance(
        error,
        RequestValidationException | RequestInvalid | Unauthorized | AuthenticationFailed,
    )


def translate(error: BaseException, statement: str, keyspace: str) -> CassieqError:
    """The error a caller sees for a read or an idempotent write."""
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, InvalidRequest | RequestInvalid) and _is_missing(str(error)):
        return SchemaMissing(
            f"keyspace {keyspace!r} or its tables are not there ({words}). Create them with "
            "client.bootstrap(replication=...)"
        )
    if is_refusal(error):
        return UsageError(f"Cassandra refused statement {statement!r} ({words})")
    if isinstance(error, Timeout | OperationTimedOut):
        return StoreTimeout(
            f"statement {statement!r} was not answered in time ({words}). Try again; if it stays, "
            "look at the load and the number of nodes that are up"
        )
    if isinstance(
        error,
        Unavailable
        | NoHostAvailable
        | ConnectionException
        | UnresolvableContactPoints
        | RequestExecutionException
        | OSError,
    ):
        return StoreUnavailable(
            f"Cassandra cannot run statement {statement!r} now ({words}). Are enough nodes up for "
            "a quorum?"
        )
    return StoreUnavailable(f"statement {statement!r} failed ({words})")


def _is_missing(words: str) -> bool:
    lowered = words.lower()
    return (
        "unconfigured table" in lowered
        or "does not exist" in lowered
        or "undefined column" in lowered
        or "unknown keyspace" in lowered
    )
