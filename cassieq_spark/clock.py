"""Pass time as an argument: cluster time in µs, monotonic seconds, and waiting (G6).

Read this module for how nodes' clocks are measured, and what a wrong clock can do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cassieq_spark.errors import CassieqError, StoreUnavailable
from cassieq_spark.model.node_times import APART_US, agreeing_of, middle_of

MEASURE_EVERY_S: Final = 60.0
"""The time between measurements: clocks drift apart by milliseconds; a re-claim leaves 250 (G6)."""

RETRY_AFTER_S: Final = 1.0
"""The pause after a measurement that too few nodes answered."""

UNSURE_EVERY_S: Final = 5.0
"""The pause after a measurement in which no majority of the nodes agreed."""

JUMP_US: Final = 100_000
"""The most that wall and monotonic time may differ; above it, a clock was set or the machine
slept."""

WIDEST_US: Final = 200_000
"""The widest span of a node's time that is used: the time is then known to within half of this.
Two clients that are both wrong by that, one to each side, stay below the 250 ms of a re-claim
(G6) [T7]."""

PATIENCE_S: Final = 10.0
"""The limit of the first measurement's retries: machines may be busy, or nodes away for a
moment."""

AWAY_AFTER_S: Final = 1.0
"""The time after which the first measurement ends, if at least half of the nodes answer, and
agree."""

_ROUNDS: Final = 5
_PAUSE_S: Final = 0.05
_STEPPED_US: Final = 10_000

# Monotonic time that goes on while the machine is suspended: leases run out meanwhile [T13].
_STEADY: Final[int | None] = (
    time.CLOCK_MONOTONIC if sys.platform == "darwin" else getattr(time, "CLOCK_BOOTTIME", None)
)
COUNTS_SLEEP: Final = _STEADY is not None
"""Whether `SystemClock.monotonic` goes on while this machine is suspended."""


class Cancellable(Protocol):
    """A call that will come."""

    def cancel(self) -> None:
        """Let it not come."""


class Clock(Protocol):
    """The interface by which all code of this package uses time."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since an unspecified moment; they never go back."""

    def wait(self, seconds: float) -> None:
        """Block the thread for this many seconds; return at once for 0 or less."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for this many seconds; the event loop goes on."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """Call a function in the present event loop after this many seconds.

        The call has a context of its own: it belongs to no client's call.
        """


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """See `Clock`; time goes on while the machine is suspended, where that is possible."""
        return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(max(0.0, seconds))

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """See `Clock`."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), call, context=Context())


@asynccontextmanager
async def within(seconds: float, clock: Clock) -> AsyncIterator[None]:
    """Work in this block for so long at most; raise TimeoutError if it takes longer."""
    async with asyncio.timeout(None) as limit:
        over = clock.call_later(seconds, lambda: limit.reschedule(0))
        try:
            yield
        finally:
            over.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The time that a node reported, in µs since the epoch.

    Attributes:
        sent_s, back_s: The times of the question and of the answer, by our monotonic clock.
    """

    node: str
    sent_s: float
    back_s: float
    there_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers to one question that was sent to all nodes.

    Attributes:
        silent: The nodes that did not answer.
    """

    readings: tuple[Reading, ...]
    silent: frozenset[str] = frozenset()


class Ask(Protocol):
    """A function that asks the nodes of the local data centre for their time, all at once."""

    async def __call__(self, base: Clock, but: Collection[str]) -> Answers:
        """Ask all nodes except ``but``, and take the time by ``base``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The bounds of how far a node's clock is ahead of our monotonic clock, in µs."""

    least: float
    most: float

    @classmethod
    def of(cls, reading: Reading) -> _Span:
        """Return the bounds by one answer: the node read its clock between sending and answer."""
        return cls(
            least=reading.there_us - reading.back_s * 1e6,
            most=reading.there_us - reading.sent_s * 1e6,
        )

    def narrowed(self, other: _Span) -> _Span:
        """Narrow the span by another answer of the node; its clock may have been set meanwhile."""
        both = _Span(least=max(self.least, other.least), most=min(self.most, other.most))
        return other if both.least - both.most > _STEPPED_US else both

    @property
    def middle(self) -> float:
        """The best guess. It is wrong by half the width at most."""
        return (self.least + self.most) / 2

    @property
    def is_narrow(self) -> bool:
        """Whether the span is narrow enough to be used [T7]."""
        return self.most - self.least <= WIDEST_US


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """A moment by three clocks, and the monotonic time of the next measurement."""

    cluster_us: int
    wall_us: int
    monotonic_s: float
    due_s: float


class ClusterClock:
    """Cluster time: measured now and then, and carried on by this machine's monotonic clock.

    Cluster time is the median of the nodes' clocks, so one node with a wrong clock moves nothing
    [T7]. All answers of a node narrow down its clock, at least as far as its fastest round trip
    does. Two clients whose own clocks are hours apart agree to within the 250 ms of a re-claim.
    Setting this machine's clock moves nothing: a client that thought itself an hour ahead for a
    minute would re-claim live leases (I2). Cluster time is not monotonic: a measurement may correct
    it by milliseconds. It is measured in the event loop; any thread may ask it for the time.
    """

    def __init__(
        self,
        base: Clock,
        ask: Ask,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        tell: Callable[[Mapping[str, float]], None] | None = None,
        counts_sleep: bool = COUNTS_SLEEP,
    ) -> None:
        """Prepare the clock; `settle` or the first `now_us` measures.

        Args:
            spawn: Begins a measurement in the event loop, from any thread.
            tell: Called with the nodes whose clocks are more than a second wrong, and by how many.
            counts_sleep: Whether ``base.monotonic`` goes on while the machine is suspended.
        """
        self._base = base
        self._ask = ask
        self._spawn = spawn
        self._tell = tell
        self._counts_sleep = counts_sleep
        self._measuring = asyncio.Lock()
        self._is_begun = False
        self._anchor: _Anchor | None = None
        self._failure: StoreUnavailable | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether callers must `settle` the clock first: it is not measured, or too long ago."""
        anchor = self._anchor
        if anchor is None:
            return self._failure is None
        return self._is_stale(anchor, self._base.monotonic(), MEASURE_EVERY_S)

    async def settle(self) -> None:
        """Measure if the clock is in doubt. If that fails, `now_us` raises the error."""
        if self.is_in_doubt:
            await self._renew(self._anchor)

    async def renew(self) -> None:
        """Measure if that is due."""
        anchor = self._anchor
        if anchor is not None and self._is_stale(anchor, self._base.monotonic()):
            await self._renew(anchor)

    def now_us(self) -> int:
        """Return cluster time; begin to measure it if the last measurement is a minute old.

        Raises:
            StoreUnavailable: There was no measurement before, or too few nodes reported their time,
                or none fast enough.
        """
        now_s = self._base.monotonic()  # it raises a better error in a process that was forked
        anchor = self._anchor
        if anchor is None or self._is_stale(anchor, now_s):
            anchor, now_s = self._until_renewed(anchor), self._base.monotonic()
        return anchor.cluster_us + round((now_s - anchor.monotonic_s) * 1e6)

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._base.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        self._base.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await self._base.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """See `Clock`."""
        return self._base.call_later(seconds, call)

    def _is_stale(self, anchor: _Anchor, now_s: float, late_s: float = 0.0) -> bool:
        """Whether a measurement is due, or was ``late_s`` ago; every statement asks."""
        is_due = now_s >= anchor.due_s + late_s
        return is_due or abs(self._jump_us(anchor, now_s)) > JUMP_US

    def _jump_us(self, anchor: _Anchor, now_s: float) -> int:
        """Return how much further the wall clock went than the monotonic clock since the anchor."""
        passed_us = (now_s - anchor.monotonic_s) * 1e6
        return round(self._base.now_us() - anchor.wall_us - passed_us)

    def _until_renewed(self, old: _Anchor | None) -> _Anchor:
        """Begin a measurement, and go on with the last one meanwhile."""
        if not self._is_begun:
            self._is_begun = True
            try:
                self._spawn(self._renew(old))
            except CassieqError:
                self._is_begun = False  # the interpreter ends
        if self._anchor is not None and self._anchor is not old:
            return self._anchor
        if old is None:
            raise _unknown("too few") if self._failure is None else copy(self._failure)
        return self._carried_on(old)

    async def _renew(self, old: _Anchor | None) -> None:
        """Measure, unless somebody else has done it meanwhile."""
        try:
            async with self._measuring:
                if self._anchor is old:
                    self._anchor = await self._measured(old)
        except StoreUnavailable as error:
            self._failure = error
        except CassieqError:
            pass  # the client is closed
        finally:
            self._is_begun = False

    async def _measured(self, old: _Anchor | None) -> _Anchor:
        """Ask until a majority agrees. A clock that was measured before asks once only."""
        spans: dict[str, _Span] = {}
        began_s = self._base.monotonic()
        while True:
            known = await self._ask_nodes(spans)
            offsets = {node: span.middle for node, span in spans.items() if span.is_narrow}
            agreeing = agreeing_of(offsets.values())
            is_sure = agreeing > known // 2
            is_half = len(offsets) >= (known + 1) // 2 > 0
            # If all that answer agree, the others may be down for long.
            patience_s = AWAY_AFTER_S if is_half and agreeing == len(offsets) else PATIENCE_S
            if is_sure or old is not None or self._base.monotonic() - began_s >= patience_s:
                break
            await self._base.sleep(_PAUSE_S)
        if not is_half:
            if old is None:
                raise _unknown(f"{len(offsets)} of {known}")
            return self._carried_on(old)
        own = None if old is None else old.cluster_us - old.monotonic_s * 1e6
        chosen = middle_of(offsets.values(), own)
        self._tell_of_the_wrong(offsets, chosen)
        now_s = self._base.monotonic()
        return self._anchor_at(
            now_s, round(chosen + now_s * 1e6), MEASURE_EVERY_S if is_sure else UNSURE_EVERY_S
        )

    async def _ask_nodes(self, spans: dict[str, _Span]) -> int:
        """Narrow the span of each node by some rounds; return the number of nodes there are."""
        silent: frozenset[str] = frozenset()
        for _ in range(_ROUNDS):
            answers = await self._ask(self._base, silent)
            silent |= answers.silent
            for reading in answers.readings:
                span = _Span.of(reading)
                before = spans.get(reading.node)
                spans[reading.node] = span if before is None else before.narrowed(span)
            if not answers.readings:
                break
        return len(silent | spans.keys())

    def _carried_on(self, old: _Anchor) -> _Anchor:
        """Go on by our own clock when too few nodes answer: one of them may be the wrong one.

        If our clock stood still while the machine slept, the wall clock puts it forward: a holder
        must not think that its lease lives on [T13]. The client cannot re-claim another's lease by
        that: it reaches no node, and measures anew as soon as it does.
        """
        slept_us = 0 if self._counts_sleep else self._jump_us(old, self._base.monotonic())
        slept_us = slept_us if slept_us > JUMP_US else 0
        return self._anchor_at(old.monotonic_s, old.cluster_us + slept_us, RETRY_AFTER_S)

    def _tell_of_the_wrong(self, offsets: Mapping[str, float], chosen: float) -> None:
        wrong = {
            node: (offset - chosen) / 1e6
            for node, offset in offsets.items()
            if abs(offset - chosen) > APART_US
        }
        if wrong and self._tell is not None:
            self._tell(wrong)

    def _anchor_at(self, monotonic_s: float, cluster_us: int, again_in_s: float) -> _Anchor:
        now_s = self._base.monotonic()
        return _Anchor(
            cluster_us=cluster_us,
            wall_us=self._base.now_us() - round((now_s - monotonic_s) * 1e6),
            monotonic_s=monotonic_s,
            due_s=now_s + again_in_s,
        )


def _unknown(told: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the cluster's time is unknown: {told} nodes of this data centre told their "
        f"time within {PATIENCE_S:g} s, with round trips below {WIDEST_US // 1_000} ms. Check "
        "that the nodes are up, and that neither this machine nor the network is too slow. Then "
        "try again"
    )
