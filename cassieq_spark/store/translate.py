"""Turn the driver's errors into ours, and find out why a client has no connection."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from cassandra import (
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
from cassandra.connection import ConnectionException, EndPoint
from cassandra.protocol import ErrorMessage
from cassandra.protocol import RequestValidationException as RequestInvalid

from cassieq_spark.errors import (
    CassandraLoginFailed,
    CassieqError,
    SchemaMissing,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    TlsFailed,
    UsageError,
)
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import tls


class LoginRefused(ConnectionException):  # type: ignore[misc]  # the driver has no types
    """A node refused a login. After an ``AuthenticationFailed`` the driver would never try again.

    The password may be set back, and a node that has just booted refuses every login until it can
    read the roles.
    """


class HandshakeFailed(ConnectionException):  # type: ignore[misc]
    """TLS failed; ``__cause__`` is the reason, of which the driver keeps only a text."""


DRIVER_ERRORS: Final = (
    DriverException,
    NoHostAvailable,
    ErrorMessage,
    ConnectionException,
    UnresolvableContactPoints,
    OSError,
)
"""All errors that a statement can raise. Some of our own are OSErrors, too: handle those before."""

_MISSING: Final = ("unconfigured table", "does not exist", "undefined column", "unknown keyspace")
"""The words of Cassandra for a keyspace, a table or a column that is not there."""

_LACKS: Final = re.compile(
    r"User (?P<role>\S+) has no (?P<permission>[A-Z]+) permission on <(?P<resource>[^>]+)>"
)
"""The words of Cassandra 4.0 to 5.0 for a missing grant; other words are quoted as they are."""


def is_refusal(error: BaseException) -> bool:
    """Whether the server looked at the statement and refused to run it: nothing was applied.

    Any other failure of a CAS is ambiguous: a timeout, a lost connection, and also "unavailable",
    which Cassandra may raise for the commit after the proposal was accepted.
    """
    return isinstance(
        error,
        RequestValidationException | RequestInvalid | Unauthorized,
    )


def translate(
    error: BaseException,
    statement: str,
    options: ConnectionOptions,
    failures: Mapping[EndPoint, BaseException],
    waited: str | None = None,
) -> CassieqError:
    """Return the error that a caller sees for a read or an idempotent write.

    Args:
        failures: The error of the last connection attempt, by node. The driver only reports that no
            node is there: in that case ``error`` quotes these from now on.
        waited: The whole time and number of tries; None if it was sent only once.
    """
    if isinstance(error, NoHostAvailable):
        error.errors |= failures
        refusal = why_shut_out(failures, options)
        if refusal is not None:
            return refusal
    words = f"{type(error).__name__}: {error}"
    is_invalid = isinstance(error, InvalidRequest | RequestInvalid)
    if is_invalid and any(one in str(error).lower() for one in _MISSING):
        return SchemaMissing(
            f"keyspace {options.keyspace!r} or its tables do not exist ({words}). Create them with "
            "client.bootstrap(replication=...)"
        )
    if is_refusal(error):
        return _refused(error, statement, words)
    if isinstance(error, Timeout | OperationTimedOut):
        return StoreTimeout(
            f"statement {statement!r} was not answered in "
            f"{'time' if waited is None else waited} ({words}). Try again. If that "
            "fails too, look at the load and at the number of nodes that are up"
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
            f"Cassandra cannot run statement {statement!r} now"
            f"{'' if waited is None else f', after {waited}'} ({words}). Are enough nodes up for "
            "a quorum?"
        )
    return StoreUnavailable(f"statement {statement!r} failed ({words})")


def why_shut_out(
    failures: Mapping[EndPoint, BaseException], options: ConnectionOptions
) -> CassandraLoginFailed | TlsFailed | None:
    """Return why nodes refuse this client, by its last connections; None: not for login or TLS."""
    for node, error in list(failures.items()):
        if isinstance(error, LoginRefused) and _CANNOT_CHECK not in str(error):
            return _not_let_in(options, str(error))
        broken = error if isinstance(error, ssl.SSLError) else error.__cause__
        if isinstance(broken, ssl.SSLError):
            return TlsFailed(f"the node at {node} {tls.told(broken, options)}")
    return None


_CANNOT_CHECK: Final = "Unable to perform authentication"
"""The words of a node that cannot read the roles now, as after a power cut (Cassandra 4.0 on)."""


def _refused(error: BaseException, statement: str, words: str) -> UsageError:
    if not isinstance(error, Unauthorized):
        return UsageError(f"Cassandra refused statement {statement!r} ({words})")
    found = _LACKS.search(words)
    if found is None:
        return UsageError(
            f"this client's role may not run statement {statement!r} ({words}). Grant it the "
            "permissions that docs/operations/security.md lists for what it does"
        )
    permission, resource, role = found["permission"], found["resource"], found["role"]
    return UsageError(
        f"role {role!r} may not run statement {statement!r}: it lacks {permission} on {resource} "
        f"({words}). If that is its part (docs/operations/security.md), run: GRANT {permission} ON "
        f"{resource.upper() if resource.startswith('all ') else resource.removeprefix('table ')} "
        f'TO "{role}"'
    )


def why_unconnected(
    error: BaseException,
    options: ConnectionOptions,
    context: tls.Files | None,
    waited_s: float,
) -> StoreError:
    """Return the error that a user sees, for the driver's error while it connected.

    Call it after a failure: it probes host names and nodes once more, since the driver reports
    neither which name has no address nor a node's objection to TLS.

    Args:
        waited_s: How long the driver has tried; a node that refuses takes no time.
    """
    # The driver puts only addresses there if it had a node, and lost it at once.
    errors = error.errors if isinstance(error, NoHostAvailable) else None
    by_node = errors if isinstance(errors, dict) else {}
    refused = why_shut_out(by_node, options)
    if isinstance(refused, CassandraLoginFailed):
        return refused
    for one in by_node.values():
        if isinstance(one, LoginRefused):
            return StoreUnavailable(
                f"the cluster at {options.addresses} cannot check a login now ({one}). Are enough "
                "nodes up for a quorum of the roles?"
            )
    unknown = _without_address(options)
    if len(unknown) < len({host for host, _ in options.contact_points}):
        disagreement = tls.disagreement(options, context)
        if disagreement is not None:
            return disagreement
    return StoreUnavailable(
        f"no Cassandra answers at {options.addresses} (tried for {waited_s:.1f} s). "
        + (
            f"This machine knows no address of {' and '.join(map(repr, unknown))}: is the host "
            "name right, and does its DNS server answer?"
            if unknown
            else "Is it running, is the address right, and is the port that of CQL (native "
            "transport)?"
        )
    )


def _without_address(options: ConnectionOptions) -> list[str]:
    """Return host names that this machine cannot look up, in their order, each once."""
    unknown = []
    for host, port in dict(options.contact_points).items():
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            unknown.append(host)
    return unknown


def _not_let_in(options: ConnectionOptions, words: str) -> CassandraLoginFailed:
    """Return the error that names the role; the password never appears in it."""
    where = options.addresses
    if options.login is None:
        return CassandraLoginFailed(
            f"the cluster at {where} asks for a login ({words}). Set "
            f"{options.spelling.named('username')} and {options.spelling.named('password')}"
        )
    return CassandraLoginFailed(
        f"the cluster at {where} refuses the login of {options.login.username!r} ({words}). Is "
        "the password right, and may that role log in (LOGIN = true)?"
    )
