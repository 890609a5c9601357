"""`connect_async` imports little: a thread imports all else when the block of its client begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, SupportsIndex, Unpack, cast

import cassieq_spark
from cassieq_spark.options import (
    ConnectionArguments,
    ConnectionOptions,
    arguments,
    by_option,
    parse_connection,
)

THREADS: Final = 16
"""Calls at once, unless the program says otherwise. Each waits for Cassandra most of its time."""


def connect_async(
    contact_points: str | Sequence[str] | None = None,
    *,
    threads: int = THREADS,
    **connection: Unpack[ConnectionArguments],
) -> cassieq_spark.AsyncClient:
    """Return a client for asyncio, which connects in its ``async with`` block.

    Args:
        contact_points: As for `connect`.
        threads: How many calls are under way at once; others wait for them. Waiting for messages
            takes no thread.
        connection: As for `connect`.

    Raises:
        UsageError: An argument is unknown or has a wrong form, or a file has the wrong content.
    """
    own = {"contact_points": contact_points}
    options = parse_connection(by_option(connection, own, of="connect"))
    made = _Unopened(options, arguments.count("threads", threads))
    return cast("cassieq_spark.AsyncClient", made)


class _Unopened:
    """Becomes an `AsyncClient` in its block, once a thread has imported what that needs.

    Any other use makes it one at once.
    """

    def __init__(self, options: ConnectionOptions, threads: int) -> None:
        self._options = options
        self._threads = threads

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
    """The same object: who holds it, holds the client."""
    client = cast("cassieq_spark.AsyncClient", one)
    if type(one) is _Unopened:
        options, threads = one._options, one._threads  # noqa: SLF001 - its own
        client.__class__ = cassieq_spark.AsyncClient
        client.__init__(options, threads=threads)  # type: ignore[misc]  # made in a second step
    return client
