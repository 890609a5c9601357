"""`Scanner` counts all queues every half a minute, in one process for all (leader lease).

Whoever is scraped asks for the lead. The others export no figures of queues: Prometheus would count
every message twice. A process that nobody scrapes any more gives the lead up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import system
from cassieq_spark.errors import CassieqError, QueueDeleted, QueueNotFound
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId
from cassieq_spark.queue.find import lanes_of
from cassieq_spark.queue.inspect.stats import QueueStats, scheduled_later, stats
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.schedules.dispatch import lateness
from cassieq_spark.repair.lead import Lead, leading
from cassieq_spark.store import portal
from cassieq_spark.store.store import Store

SCANS_EVERY_S: Final = 30.0
"""The time from the beginning of a scan to that of the next."""

LATER_EVERY_S: Final = 600.0
"""The time between two counts of messages in periods that have not begun: a year of them is many
reads."""

GONE_EVERY_S: Final = 600.0
"""The time between two looks for queues that others have deleted, to forget their counts: one scan
of the table of queues, and only if the process has counted something."""

SCRAPED_WITHIN_S: Final = 300.0
"""A process that was not scraped for so long does not scan, and gives the lead up."""

_logger = get_logger("exporter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counts of a queue in one scan."""

    queue: str
    dead_letter_queue: str | None
    stats: QueueStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of one scan.

    Attributes:
        began_s: When it began, by the process's monotonic clock.
        unanswered: Queues that could not be counted, as a part of them did not answer.
        schedules: How many there are, and for how many seconds the latest one is late; None: that
            could not be read.
    """

    began_s: float
    took_s: float
    queues: tuple[Counted, ...]
    unanswered: int
    schedules: tuple[int, float] | None


class Scanner:
    """Scans in the engine's event loop while this process leads. Thread-safe.

    Args:
        every_s: The time from one scan to the next.
        on_gone: Called in the event loop with the name of a queue of this process that others have
            deleted.
    """

    def __init__(
        self, every_s: float = SCANS_EVERY_S, *, on_gone: Callable[[str], object] | None = None
    ) -> None:
        self._every_s = every_s
        self._on_gone = on_gone
        self._asked_at = -inf
        self._clock = SystemClock()
        self._scraped_at = -inf
        self._wake: Callable[[], object] = bool  # nobody waits yet
        self._woken = asyncio.Event()
        self._ended = asyncio.Event()
        self._known: tuple[Lead, Scan | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._later: dict[LaneId, tuple[float, int]] = {}

    @property
    def is_leader(self) -> bool:
        """Whether this process counts for all."""
        known = self._known
        return known is not None and known[0].is_held

    @property
    def last(self) -> Scan | None:
        """The last scan; None if this process does not lead, or not yet for a whole scan."""
        known = self._known
        # A process that was stopped for a while no longer leads, and may not know it yet.
        return known[1] if known is not None and known[0].is_held else None

    def age_s(self, scan: Scan) -> float:
        """Seconds since a scan began."""
        return self._clock.monotonic() - scan.began_s

    def note_scrape(self) -> None:
        """Say that somebody wants the figures: without that nothing is scanned."""
        self._scraped_at = self._clock.monotonic()
        self._wake()

    def start(self, store: Store) -> None:
        """Begin."""
        portal.start(self._begin(store))

    def close(self, within_s: float) -> None:
        """End; wait so long for a scan that is under way, and for the lead to be given up."""
        portal.run(self._end(within_s))

    async def _begin(self, store: Store) -> None:
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, self._woken.set)
        self._task = loop.create_task(self._run(store))

    async def _end(self, within_s: float) -> None:
        self._ended.set()
        self._woken.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    async def _run(self, store: Store) -> None:
        # Data centres do not see each other's queues, so each has a leader of its own.
        name = f"scan {store.session.datacenter}"
        while not self._ended.is_set():
            if not self._is_scraped():
                self._woken.clear()
                if not (self._is_scraped() or self._ended.is_set()):
                    await self._woken.wait()
                continue
            try:
                await self._forget_gone(store)
                async with leading(store, name) as lead:
                    if lead is not None:
                        await self._lead(store, lead)
            except CassieqError as error:
                event(_logger, "scan_failed", error=str(error))
            finally:
                self._known = None
            await self._pause(system.jitter(self._every_s, 0))

    async def _lead(self, store: Store, lead: Lead) -> None:
        """Scan until this process ends, is not scraped any more, or has lost the lead."""
        event(_logger, "scan_leadership_taken", datacenter=store.session.datacenter)
        self._known = lead, None
        while self._goes_on(lead):
            began_s = self._clock.monotonic()
            try:
                await self._forget_gone(store)
                found = await self._scan(store, lambda: self._goes_on(lead))
            except CassieqError as error:
                event(_logger, "scan_failed", error=str(error))
                found = None
            took_s = self._clock.monotonic() - began_s
            if found is not None:
                queues, unanswered = found
                self._known = (
                    lead,
                    Scan(
                        began_s=began_s,
                        took_s=took_s,
                        queues=queues,
                        unanswered=unanswered,
                        schedules=await _schedules(store),
                    ),
                )
            # However slow it is, it takes at most half of the time.
            await self._pause(max(self._every_s - took_s, took_s))

    async def _forget_gone(self, store: Store) -> None:
        now = self._clock.monotonic()
        counted = metrics.counted_queues()
        if not counted or now - self._asked_at < GONE_EVERY_S:
            return
        self._asked_at = now
        for name in counted.difference(row.name for row in await store.queues.find_all()):
            metrics.forget_queue(name)
            if self._on_gone is not None:
                self._on_gone(name)

    def _goes_on(self, lead: Lead) -> bool:
        return lead.is_held and self._is_scraped() and not self._ended.is_set()

    def _is_scraped(self) -> bool:
        return self._clock.monotonic() - self._scraped_at < SCRAPED_WITHIN_S

    async def _scan(
        self, store: Store, goes_on: Callable[[], bool]
    ) -> tuple[tuple[Counted, ...], int] | None:
        """Count all queues, one after the other; None: it was ended in the middle."""
        found: list[Counted] = []
        unanswered = 0
        later, self._later = self._later, {}
        for lane in await lanes_of(store, None):
            if not goes_on():
                return None
            try:
                counted = await stats(lane, with_later=False)
                far = await self._count_later(lane, later.get(lane.lane_id))
            except (QueueDeleted, QueueNotFound):
                continue
            except CassieqError as error:
                unanswered += 1
                event(_logger, "queue_not_counted", queue=lane.queue, error=str(error))
                continue
            dead_letters = lane.settings.dead_letter_queue
            counted = replace(counted, scheduled=counted.scheduled + far)
            found.append(Counted(queue=lane.queue, dead_letter_queue=dead_letters, stats=counted))
        return tuple(found), unanswered

    async def _count_later(self, lane: Lane, known: tuple[float, int] | None) -> int:
        now = self._clock.monotonic()
        if known is None or now - known[0] > LATER_EVERY_S:
            known = now, await scheduled_later(lane)
        self._later[lane.lane_id] = known
        return known[1]


async def _schedules(store: Store) -> tuple[int, float] | None:
    try:
        return await lateness(store)
    except CassieqError as error:  # a role may count queues, and not read schedules
        event(_logger, "scan_failed", error=str(error))
        return None
