"""Find out why a client has no connection, by asking the nodes and the resolver of host names."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from cassieq_spark.errors import AuthenticationRefused, StoreError, StoreUnavailable
from cassieq_spark.store import tls
from cassieq_spark.store.translate import login_failure

if TYPE_CHECKING:
    import ssl

    from cassieq_spark.options import ConnectionOptions


def reason(
    error: BaseException, options: ConnectionOptions, context: ssl.SSLContext | None
) -> StoreError:
    """The error that a user sees, for what the driver has raised while it connected.

    Call it after a failure: it looks at host names and nodes once more, since the driver says
    neither which name has no address nor what a node dislikes about TLS.
    """
    refused = login_failure(error)
    if refused is not None:
        return _not_let_in(options, str(refused))
    unknown = _without_address(options)
    if len(unknown) < len({host for host, _ in options.contact_points}):
        disagreement = tls.disagreement(options, context)
        if disagreement is not None:
            return disagreement
    return StoreUnavailable(
        f"no Cassandra answers at {addresses(options)} within {options.connect_timeout_s:g} s. "
        + (
            f"This machine knows no address of {' and '.join(map(repr, unknown))}: is the host "
            "name right, and does its DNS server answer?"
            if unknown
            else "Is it running, is the address right, and is the port that of CQL (native "
            "transport)?"
        )
    )


def addresses(options: ConnectionOptions) -> str:
    """The contact points as a user writes them."""
    return ", ".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in options.contact_points
    )


def _without_address(options: ConnectionOptions) -> list[str]:
    """Host names that this machine cannot look up, in their order, each once."""
    unknown = []
    for host, port in dict(options.contact_points).items():
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            unknown.append(host)
    return unknown


def _not_let_in(options: ConnectionOptions, words: str) -> AuthenticationRefused:
    """The error that names the role; the password never appears in it."""
    where = addresses(options)
    if options.login is None:
        return AuthenticationRefused(
            f"the cluster at {where} asks for a login ({words}). Set options 'username' and "
            "'password'"
        )
    return AuthenticationRefused(
        f"the cluster at {where} refuses the login of {options.login.username!r} ({words}). Is "
        "the password right, and may that role log in (LOGIN = true)?"
    )
