"""`connect` and `connect_async` open a client. This module is light to import.

A thread imports what `connect_async` needs when the client's block begins: the import takes half a
second, and the event loop would stand still during it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any, SupportsIndex, Unpack, cast

import cassieq_spark
from cassieq_spark.options import ConnectionArguments, ConnectionOptions, connection_of


def connect(
    contact_points: str | Sequence[str] | None = None, **connection: Unpack[ConnectionArguments]
) -> cassieq_spark.Client:
    """Connect to a keyspace. Close the client, or use it as a context manager.

    Args:
        contact_points: ``"host:port,host:port"`` or a list of ``"host:port"``; the port is 9042 if
            it is left out. Default: variable ``CASSIEQ_CONTACT_POINTS``.
        connection: See `ConnectionArguments`: keyspace, data centre, timeout, login, TLS.

    Raises:
        UsageError: An argument is unknown or has a wrong form, or a file has the wrong content.
        CassandraLoginFailed: The nodes ask for a login, or refuse the one that was given.
        TlsFailed: Nodes and this client do not accept each other's certificates.
        StoreUnavailable: No node answers; the error names host and port.
    """
    return cassieq_spark.Client(connection_of(connection, contact_points, of="connect"))


def connect_async(
    contact_points: str | Sequence[str] | None = None,
    **connection: Unpack[ConnectionArguments],
) -> cassieq_spark.AsyncClient:
    """Return a client for asyncio, which connects in its ``async with`` block.

    Args:
        contact_points: As for `connect`.
        connection: As for `connect`.

    Raises:
        UsageError: An argument is unknown or has a wrong form, or a file has the wrong content.
    """
    made = _Unopened(connection_of(connection, contact_points, of="connect_async"))
    return cast("cassieq_spark.AsyncClient", made)


class _Unopened:
    """Becomes an `AsyncClient` when its block begins, after a thread has imported the module.

    Any other use turns it into an `AsyncClient` at once.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options

    async def __aenter__(self) -> cassieq_spark.AsyncClient:
        await asyncio.to_thread(import_module, "cassieq_spark.aio.client")
        return await _become_a_client(self).__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await _become_a_client(self).__aexit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(_become_a_client(self), name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return _become_a_client(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"AsyncClient({self._options})"


def _become_a_client(one: _Unopened) -> cassieq_spark.AsyncClient:
    """Turn the object into an `AsyncClient` in place: references to it stay valid."""
    client = cast("cassieq_spark.AsyncClient", one)
    if type(one) is _Unopened:
        options = one._options  # noqa: SLF001 - its own
        client.__class__ = cassieq_spark.AsyncClient
        client.__init__(options)  # type: ignore[misc]  # made in a second step
    return client
