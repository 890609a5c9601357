"""Ask the nodes of the local data centre for their time (G6) [T7]."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark import metrics
from cassieq_spark.clock import MEASURE_EVERY_S, Answers, Reading
from cassieq_spark.log import event, get_logger
from cassieq_spark.store.translate import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from weakref import ref

    from cassandra.cluster import Session
    from cassandra.pool import Host

    from cassieq_spark.clock import Clock, ClusterClock
    from cassieq_spark.store.session import CqlSession

MOST_NODES: Final = 5
"""The most nodes to ask in a larger data centre: two of them may be wrong."""

ANSWERS_WITHIN_S: Final = 1.0
"""The time after which a node counts as silent; a stopped node delays a measurement by this."""

# Unlike now(), this goes back when the node's clock is set back: a node's timeuuids only ascend,
# and would stand still until the wrong time has come.
_ASK: Final = "SELECT currentTimestamp() AS now FROM system.local"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HALF_A_STEP_US: Final = 500
"""Half of the unit in which nodes report their time, whole milliseconds."""

_logger = get_logger("store")


class NodeClocks:
    """Asks several nodes for their own time; an `Ask`.

    It always asks the same nodes, while they are up, so clients agree even if nodes do not.
    """

    def __init__(self, session: Session, datacenter: str, check_open: Callable[[], None]) -> None:
        self._session = session
        self._datacenter = datacenter
        self._check_open = check_open

    def __call__(self, stopwatch: Callable[[], float], but: Collection[str]) -> Answers:
        """See `Ask`.

        Raises:
            UsageError: The client is closed.
        """
        self._check_open()
        answered: SimpleQueue[Reading | None] = SimpleQueue()

        def ask(host: Host) -> None:
            node = str(host.address)
            sent_s = stopwatch()

            # This runs in the driver's own thread: the present one may wait long for its turn on a
            # busy machine.
            def note(rows: list[Any]) -> None:
                back_s = stopwatch()
                there_us = _us_of(rows[0].now) + _HALF_A_STEP_US
                answered.put(Reading(node=node, sent_s=sent_s, back_s=back_s, there_us=there_us))

            try:
                future = self._session.execute_async(_ASK, host=host, timeout=ANSWERS_WITHIN_S)
            except DRIVER_ERRORS:
                answered.put(None)
                return
            future.add_callbacks(note, lambda _: answered.put(None))

        hosts = [host for host in self._hosts() if host.address not in but]
        for host in hosts:
            ask(host)
        readings: dict[str, Reading] = {}
        # The driver reports each answer and each timeout, but the client may be closed meanwhile.
        with suppress(Empty):
            for _ in hosts:
                told = answered.get(timeout=2 * ANSWERS_WITHIN_S)
                if told is not None:
                    readings[told.node] = told
        return Answers(
            readings=tuple(readings.values()),
            silent=frozenset(str(host.address) for host in hosts) - readings.keys(),
        )

    def _hosts(self) -> list[Host]:
        known = self._session.cluster.metadata.all_hosts()
        local = [host for host in known if host.datacenter == self._datacenter]
        local.sort(key=lambda host: (host.is_up is False, str(host.host_id)))
        return local[:MOST_NODES]


def warn_of(wrong: Mapping[str, float]) -> None:
    """Log and count the nodes whose clocks are wrong: an operator has to set them."""
    for node, ahead_s in wrong.items():
        metrics.NODE_CLOCKS_WRONG.inc(node)
        event(_logger, "node_clock_wrong", node=node, ahead_s=round(ahead_s, 3))


def _us_of(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


async def keep_time(clock: ref[ClusterClock], session: ref[CqlSession], base: Clock) -> None:
    """Measure the cluster's time again each minute, even if the client does nothing (G6)."""
    while (of := session()) is not None and not of.is_closed:
        del of
        await base.sleep(MEASURE_EVERY_S)
        if (one := clock()) is not None:
            one.keep()
            del one
