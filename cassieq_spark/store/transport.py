"""`Transport` is the seam between the engine and Cassandra: it sends one request at a time.

Retries, deadlines, paging, the translation of errors and the measurement of time are above it, the
same for all transports. `store.driver` has the driver's. Fault tests wrap another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from cassieq_spark.store.statements import Statement


class Node(NamedTuple):
    """A node of the cluster.

    Attributes:
        is_up: Whether it answers; None: nobody has tried yet.
    """

    host_id: UUID
    address: str
    datacenter: str | None
    is_up: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one page of rows.

    Attributes:
        rows: The bound values. Several rows are writes into one partition: all of them are stored,
            or none.
        page: The place where the page begins, from the page before; None: the first one.
        node: The node that runs it; None: any.
    """

    statement: Statement
    rows: Sequence[tuple[Any, ...]]
    timeout_s: float
    page: bytes | None = None
    node: Node | None = None


class Page(NamedTuple):
    """The answer to a request.

    Attributes:
        following: The place of the next page; None: this is the last one.
    """

    rows: Sequence[Any]
    following: bytes | None = None


Told = Callable[[Page | BaseException], object]
"""Takes a page, or an error of the driver. Any thread may call it."""


def soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Call in an event loop: at once if it is the one that runs here. Any thread may ask for it."""
    here = asyncio._get_running_loop()  # noqa: SLF001 - without an error in other threads
    if here is loop:
        call(*arguments)
    else:
        loop.call_soon_threadsafe(call, *arguments, context=Context())


class Transport(Protocol):
    """The interface by which statements reach Cassandra.

    Attributes:
        datacenter: The local data centre.
        counts: Rows of statements sent, by the statement's name.
        failures: The error of the last connection attempt, by node.
    """

    datacenter: str
    counts: Counter[str]
    failures: Mapping[Any, BaseException]

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection to any node."""

    def is_ready(self, statement: Statement) -> bool:
        """Whether `send` can send this statement; otherwise `prepare` comes first."""

    async def prepare(self, statement: Statement, timeout_s: float) -> None:
        """Prepare a statement, or raise an error of the driver."""

    def send(self, request: Request, told: Told) -> None:
        """Send a request; any thread may. ``told`` is called once, in any thread.

        Nobody takes back a request that was sent: its outcome would be unknown.
        """

    async def define(self, ddl: str, timeout_s: float) -> None:
        """Run a schema statement until all nodes agree, or raise an error of the driver."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes of the cluster, up or not."""

    def close(self) -> None:
        """Disconnect. May block."""
