"""Ask the nodes of the local data centre for their time (G6) [T7]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC
from typing import Final
from weakref import ref

from cassieq_spark import metrics
from cassieq_spark.clock import MEASURE_EVERY_S, Answers, Clock, ClusterClock, Reading, within
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.moments import us_of
from cassieq_spark.store.statements import READ_NODE_TIME
from cassieq_spark.store.translate import DRIVER_ERRORS
from cassieq_spark.store.transport import Node, Page, Request, Transport

MOST_NODES: Final = 5
"""The most nodes to ask in a larger data centre: two of them may be wrong."""

ANSWERS_WITHIN_S: Final = 1.0
"""The time after which a node counts as silent; a stopped node delays a measurement by this."""

_HALF_A_STEP_US: Final = 500
"""Half of the unit in which nodes report their time, whole milliseconds."""

_logger = get_logger("store")


class NodeClocks:
    """Asks several nodes for their own time; an `Ask`.

    It always asks the same nodes, while they are up, so clients agree even if nodes do not.
    """

    def __init__(self, transport: Transport, check_open: Callable[[], None]) -> None:
        self._transport = transport
        self._check_open = check_open

    async def __call__(self, base: Clock, but: Collection[str]) -> Answers:
        """See `Ask`.

        Raises:
            ClientClosed: The client is closed.
        """
        self._check_open()
        try:
            await self._transport.prepare(READ_NODE_TIME, ANSWERS_WITHIN_S)
        except DRIVER_ERRORS:
            return Answers(readings=())
        nodes = [node for node in self._nodes() if node.address not in but]
        asked = [self._ask(node, base) for node in nodes]
        # The transport reports each answer and each timeout, but may be closed meanwhile.
        with suppress(TimeoutError):
            async with within(2 * ANSWERS_WITHIN_S, base):
                for one in asked:
                    await one
        told = (one.result() for one in asked if one.done() and not one.cancelled())
        readings = tuple(one for one in told if one is not None)
        return Answers(
            readings=readings,
            silent=frozenset(node.address for node in nodes) - {one.node for one in readings},
        )

    def _ask(self, node: Node, base: Clock) -> asyncio.Future[Reading | None]:
        """Ask one node; None: it does not answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reading | None] = loop.create_future()
        sent_s = base.monotonic()

        # This runs in the driver's own thread: the present one may wait long for its turn on a busy
        # machine.
        def note(told: Page | BaseException) -> None:
            back_s = base.monotonic()
            reading = None
            if isinstance(told, Page):
                now = told.rows[0].now.replace(tzinfo=UTC)
                there_us = us_of(now) + _HALF_A_STEP_US
                reading = Reading(
                    node=node.address, sent_s=sent_s, back_s=back_s, there_us=there_us
                )
            with suppress(RuntimeError):  # the interpreter ends
                loop.call_soon_threadsafe(_tell, answer, reading)

        request = Request(
            statement=READ_NODE_TIME, rows=[()], timeout_s=ANSWERS_WITHIN_S, node=node
        )
        self._transport.send(request, note)
        return answer

    def _nodes(self) -> list[Node]:
        datacenter = self._transport.datacenter
        local = [node for node in self._transport.nodes() if node.datacenter == datacenter]
        local.sort(key=lambda node: (node.is_up is False, str(node.host_id)))
        return local[:MOST_NODES]


def _tell(answer: asyncio.Future[Reading | None], reading: Reading | None) -> None:
    if not answer.done():
        answer.set_result(reading)


def warn_of(wrong: Mapping[str, float]) -> None:
    """Log and count the nodes whose clocks are wrong: an operator has to set them."""
    for node, ahead_s in wrong.items():
        metrics.NODE_CLOCKS_WRONG.inc(node)
        event(_logger, "node_clock_wrong", node=node, ahead_s=round(ahead_s, 3))


async def keep_time(clock: ref[ClusterClock], base: Clock) -> None:
    """Measure the cluster's time again each minute, even if the client does nothing (G6)."""
    while True:
        await base.sleep(MEASURE_EVERY_S)
        if (one := clock()) is None:
            return
        await one.renew()
        del one
