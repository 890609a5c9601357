"""`SimulatedTransport` takes a client's statements to a simulated ring and back."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Mapping
from contextvars import Context
from functools import partial
from typing import Any, Final

from cassandra import InvalidRequest, OperationTimedOut
from cassandra.cluster import NoHostAvailable

from cassieq_spark import metrics
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import DRIVER_ERRORS
from cassieq_spark.store.transport import Node as Address
from cassieq_spark.store.transport import Page, Request, Told, soon
from cassieq_spark.testing.simulated import cql
from cassieq_spark.testing.simulated.paxos import Variant
from cassieq_spark.testing.simulated.ring import Node, Ring, Stopped, shut
from cassieq_spark.testing.simulated.server import ROWS_PER_PAGE, Server

STEPS: Final = 10
"""A request's time is counted in so many steps. A machine that stands still for however long takes
one of them from it, and the nodes, which stood still with it, have the others to answer."""


class _Sent:
    """A request under way, which is answered once, or times out."""

    def __init__(self, request: Request, told: Told, of_node: dict[_Sent, None]) -> None:
        self.request = request
        self._told = told
        self._of_node = of_node
        of_node[self] = None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._wait(STEPS)

    def tell(self, answer: Page | BaseException) -> None:
        """Answer, unless it was answered before."""
        if not self._is_over:
            self._is_over = True
            self._of_node.pop(self, None)
            self._timer.cancel()
            self._told(answer)

    def _wait(self, steps: int) -> None:
        """Time out after so many steps."""
        if steps:
            step_s = self.request.timeout_s / STEPS
            self._timer = self._loop.call_later(step_s, self._wait, steps - 1, context=Context())
        else:
            self.tell(OperationTimedOut(f"no answer within {self.request.timeout_s} s"))


class SimulatedTransport:
    """A client's connections to a simulated ring; a `Transport`.

    Attributes:
        name: The client's place in the network.
        server: What the nodes do with a statement.
        datacenter, counts, failures: See `Transport`.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        name: str = "client",
        datacenter: str | None = None,
        variant: Variant = Variant.V2,
        rows_per_page: int = ROWS_PER_PAGE,
        rng: random.Random | None = None,
    ) -> None:
        self.ring = ring
        self._rng = rng or ring.rng
        self.name = name
        self.datacenter = datacenter or ring.nodes[0].datacenter
        self.server = Server(ring, variant=variant, rows_per_page=rows_per_page)
        self.counts: Counter[str] = Counter()
        self.failures: Mapping[Any, BaseException] = {}
        self._ready: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: dict[Node, dict[_Sent, None]] = {node: {} for node in ring.nodes}
        ring.on_stop.append(self._break)

    @property
    def is_connected(self) -> bool:
        """See `Transport`."""
        return any(node.is_up for node in self.ring.nodes)

    def is_ready(self, statement: Statement) -> bool:
        """See `Transport`."""
        return statement.name in self._ready

    async def prepare(self, statement: Statement, timeout_s: float) -> None:
        """See `Transport`."""
        del timeout_s
        self._loop = asyncio.get_running_loop()
        if statement.kind is not Kind.SYSTEM:
            self.server.command_of(statement)
        self._ready.add(statement.name)

    def nodes(self) -> list[Address]:
        """See `Transport`."""
        return [
            Address(node.host_id, node.address, node.datacenter, node.is_up)
            for node in self.ring.nodes
        ]

    def close(self) -> None:
        """See `Transport`. What was sent goes on."""

    async def define(self, ddl: str, timeout_s: float) -> None:
        """See `Transport`."""
        del timeout_s
        if ddl.startswith("CREATE KEYSPACE"):
            copies = re.findall(r"'([^']+)': '?(\d+)'?", ddl)
            if any(int(count) != self._nodes_of(name) for name, count in copies):
                raise InvalidRequest("the simulated keyspace has a copy on each node")
            self.ring.copies = {name: int(count) for name, count in copies}
            return
        if self.ring.copies is None:
            raise InvalidRequest(f"Keyspace {self.ring.keyspace} does not exist")
        table = cql.parse_table(ddl)
        self.ring.tables.setdefault(table.name, table)

    def _nodes_of(self, datacenter: str) -> int:
        return sum(node.datacenter == datacenter for node in self.ring.nodes)

    def send(self, request: Request, told: Told) -> None:
        """See `Transport`."""
        if request.page is None and request.statement.kind is not Kind.SYSTEM:
            self.counts[request.statement.name] += len(request.rows)
            metrics.STATEMENTS.inc(request.statement.name, len(request.rows))
        if self._loop is None:
            self._leave(request, told)
        else:
            soon(self._loop, self._leave, request, told)

    def _leave(self, request: Request, told: Told) -> None:
        """Send a request, in the event loop."""
        via = self._coordinator(request.node)
        if via is None:
            told(NoHostAvailable("no simulated node is up", {}))
            return
        sent = _Sent(request, told, self._sent[via])
        self.ring.network.carry(self.name, via.address, partial(self._arrive, via, sent))

    def _break(self, node: Node) -> None:
        """Tell all that is under way at a node that its connection is broken."""
        for sent in self._sent[node]:
            self.ring.network.carry(node.address, self.name, partial(sent.tell, shut()))

    def _arrive(self, via: Node, sent: _Sent) -> None:
        """Begin a request on a node."""
        if not via.is_up:
            self.ring.network.carry(via.address, self.name, partial(sent.tell, shut()))
            return
        # A node knows nothing of a client's context.
        task = asyncio.get_running_loop().create_task(
            self._coordinate(via, sent), context=Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _coordinate(self, via: Node, sent: _Sent) -> None:
        try:
            answer: Page | BaseException = await self.server.answer(via, sent.request)
        except Stopped:
            answer = shut()
        except DRIVER_ERRORS as error:
            answer = error
        self.ring.network.carry(via.address, self.name, partial(sent.tell, answer))

    def _coordinator(self, wanted: Address | None) -> Node | None:
        """Choose a node: this one, or any that is up in the client's data centre."""
        if wanted is not None:
            found = [node for node in self.ring.nodes if node.host_id == wanted.host_id]
        else:
            found = [node for node in self.ring.nodes if node.datacenter == self.datacenter]
        found = [node for node in found if node.is_up]
        return self._rng.choice(found) if found else None
