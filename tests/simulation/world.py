"""One simulated world: a ring of three, its network and clocks, and clients in virtual time.

Faults stay within what the documentation permits (docs/operations/cluster.md): nodes stop and come
back with all that they have written, messages between nodes are lost or come twice, clocks are
apart by fractions of a second, clients die and answers are lost.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections import Counter
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from uuid import UUID

from cassandra import OperationTimedOut
from cassandra.query import UNSET_VALUE

from cassieq_spark.aio.client import AsyncClient, for_tasks
from cassieq_spark.client import Client
from cassieq_spark.entropy import Entropy
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import portal
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.transport import Page
from cassieq_spark.testing.simulated.paxos import Variant
from cassieq_spark.testing.simulated.ring import Node, Ring
from cassieq_spark.testing.simulated.transport import SimulatedTransport
from tests.simulation import limits
from tests.simulation.draws import Draws
from tests.simulation.loop import VirtualPortal
from tests.simulation.outside import WEATHERS
from tests.simulation.spots import THEMES, Spot, spelled, spots_of
from tests.simulation.unhinted import Unhinted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping

    from cassieq_spark.store.transport import Request, Told

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

START_US = 1_700_000_000_000_000
DATACENTER = "datacenter1"
COPIES = 3
APART_US = 200_000
"""How far a node's clock is from true time at most, if it is right."""

_UNSET = "unset"


class WorldClock:
    """A clock in the world; a `Clock`.

    Attributes:
        ahead_us: How far it is ahead of true time.
        resumes_s: Until then its process stands still: no timer of it rings.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead_us: int = 0) -> None:
        self._loop = loop
        self.ahead_us = ahead_us
        self.resumes_s = 0.0

    @property
    def stands_still_s(self) -> float:
        """For how long its process still stands still."""
        return max(0.0, self.resumes_s - self._loop.time())

    def now_us(self) -> int:
        return START_US + self.ahead_us + round(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        return self._loop.time()

    def wait(self, seconds: float) -> None:
        raise AssertionError(f"nothing may block the world for {seconds} s")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
        while self.stands_still_s:
            await asyncio.sleep(self.stands_still_s)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return Timer(self, self._loop, max(0.0, seconds), call)


class Timer:
    """A timer of a process, which rings late if the process stands still; a `Cancellable`."""

    def __init__(
        self,
        clock: WorldClock,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        call: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._call = call
        self._begin(seconds)

    def _begin(self, seconds: float) -> None:
        self._handle = self._loop.call_later(seconds, self._ring, context=Context())

    def _ring(self) -> None:
        if self._clock.stands_still_s:
            self._begin(self._clock.stands_still_s)
        else:
            self._call()

    def cancel(self) -> None:
        self._handle.cancel()


@dataclass
class Weather:
    """How the network is, now.

    Attributes:
        loss: The share of messages that are lost.
        doubled: The share of messages between nodes that come twice.
        cut: The ways on which nothing passes.
        slow: The seconds that a place takes longer.
    """

    loss: float = 0.0
    doubled: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)


class WorldNetwork:
    """The network of the world; a `Network`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draws: dict[tuple[str, str], Draws] = {}
        self.weather = Weather()

    def carry(self, source: str, target: str, deliver: Callable[[], object]) -> None:
        weather, loop = self.weather, self._world.loop
        if source == target:
            loop.call_later(0.00001, deliver)
            return
        # Each way has draws of its own: a client more or less leaves the others' alone.
        draws = self._draws.get((source, target))
        if draws is None:
            draws = Draws(self._world.seed, f"from {source} to {target}")
            self._draws[source, target] = draws
        drawn = draws.random()
        delay = 0.0002 + 0.003 * drawn * drawn * drawn
        is_lost = weather.loss and draws.random() < weather.loss
        if is_lost or (source, target) in weather.cut:
            self._world.seen["lost message"] += 1
            return
        delay += weather.slow.get(source, 0.0) + weather.slow.get(target, 0.0)
        loop.call_later(delay, deliver)
        is_between_nodes = source[0] == target[0] == "1"
        if is_between_nodes and weather.doubled and draws.random() < weather.doubled:
            self._world.seen["doubled message"] += 1
            loop.call_later(delay * (1 + 10 * draws.random()), deliver)


class WorldTransport(SimulatedTransport):
    """A client's connections, which note what is sent, and may lose an answer.

    Attributes:
        is_dead: Whether its client was killed: nothing is sent, and no answer comes.
        unanswered: The share of answers that get lost.
        actors: What the client's program does.
        clock: That of its process.
        dies_after: Its client is killed before it sends one more than so many statements; None: not
            by that.
    """

    def __init__(self, world: World, name: str, clock: WorldClock) -> None:
        super().__init__(
            world.ring,
            name=name,
            variant=world.variant,
            rows_per_page=world.knobs["rows_per_page"],
            rng=Draws(world.seed, f"nodes for {name}"),
        )
        self._world = world
        self._draws = Draws(world.seed, f"transport of {name}")
        self.clock = clock
        self.is_dead = False
        self.unanswered = 0.0
        self.dies_after: int | None = None
        self.actors: list[asyncio.Task[None]] = []

    def kill(self) -> None:
        """Let the client die: its program says nothing any more."""
        self.is_dead = True
        for actor in self.actors:
            actor.cancel()

    def send(self, request: Request, told: Told) -> None:
        world = self._world
        if self.clock.stands_still_s and not self.is_dead:
            world.loop.call_later(self.clock.stands_still_s, self.send, request, told)
            return
        told = world.unhinted.listens(self.name, request, told)
        if self.is_dead:
            return
        if self.dies_after is not None:
            if self.dies_after <= 0:
                world.seen["killed before a statement"] += 1
                self.kill()
                return
            self.dies_after -= 1
        world.note(self.name, request)
        self._send_among_troubles(request, told)

    def _send_among_troubles(self, request: Request, told: Told) -> None:
        world = self._world
        spot = world.spot_at(request, self)
        if spot is not None:
            spot.happen(world, self, request, partial(self._tell, told), super().send)
            return
        if request.page is not None:
            world.seen["second page"] += 1
        if world.is_away(request):
            world.seen["bucket does not answer"] += 1
            error = OperationTimedOut("this bucket does not answer")
            world.loop.call_later(min(request.timeout_s, 2.0), self._tell, told, error)
            return
        if world.loses_hint(request, self._draws):
            world.seen["expiry hint lost"] += 1
            world.loop.call_later(0.001, self._tell, told, Page([]))
            return
        if self.unanswered > 0 and self._draws.random() < self.unanswered:
            # The connection breaks at any moment: what is sent again may come before this.
            world.seen["lost answer"] += 1
            error = OperationTimedOut("the answer was lost")
            world.loop.call_later(0.03 * self._draws.random(), self._tell, told, error)
            super().send(request, lambda _: None)
            return
        super().send(request, partial(self._tell, told))

    def _tell(self, told: Told, answer: Page | BaseException) -> None:
        if self.is_dead:
            return
        if self.clock.stands_still_s:
            self._world.loop.call_later(self.clock.stands_still_s, self._tell, told, answer)
            return
        self._world.unanswered[self.name] += isinstance(answer, BaseException)
        self._world.note_answer(self.name, answer)
        told(answer)


class Play(Protocol[T_co]):
    """What happens in a world."""

    def prepare(self) -> None:
        """Make the tables and the queues; outside of the loop."""

    def work(self) -> Coroutine[Any, Any, T_co]:
        """Let its clients work."""


def alone(play: Callable[P, T]) -> Callable[P, T]:
    """Play each world in an empty context of its own.

    What a killed client has set in it stays set, as the limits of a block that never ended.
    """

    @functools.wraps(play)
    def in_its_own(*args: P.args, **kwargs: P.kwargs) -> T:
        return Context().run(play, *args, **kwargs)

    return in_its_own


class World:
    """All of it.

    Attributes:
        parts: The parts of the plan that its seed has drawn, by name: programs, faults, limits.
        without: Those that are not played.
        seen: What has happened, by name.
        statements: How many were sent.
        on_event: Called with each event that the package logs, and its fields.
        transports_in_use: Those of programs, for faults to choose from.
        leaps_until_s: Until then all processes stand still.
        themes: What its programs do.
        pace: How much slower they are than others.
        spots: What befalls them at which statement, while there are faults.
        has_faults: Whether faults may still come.
        spelled_until_s: Until then spots last that were spelled.
        slept_s: For how long one of them has let a process stand still, at most.
        sent: How many statements of each name each client has sent.
        unanswered: How many errors each client was told.
        may_kill: Whether this client may die now.
        away_until_s: Until then the bucket that was read first does not answer.
        unhinted: Where a hint may be missing.
        weather: What is outside of what is permitted; None: nothing.
    """

    def __init__(
        self,
        seed: int,
        *,
        trace: list[tuple[Any, ...]] | None = None,
        variant: Variant | None = None,
        without: Collection[str] = (),
        sends: tuple[str, ...] | None = None,
        is_outside: bool = False,
        spots: Collection[str] = (),
    ) -> None:
        """Draw it.

        Args:
            sends: What its programs send; None: by its themes.
        """
        self.seed = seed
        self.weather = Draws(seed, "outside").choice(WEATHERS) if is_outside else None
        self.without = without
        self.parts: list[str] = []
        self.draws = Draws(seed, "world")
        self.portal = VirtualPortal()
        self.loop = self.portal.loop
        self.seen: Counter[str] = Counter()
        self.statements, self.trace = 0, trace
        self._hash = blake2b(digest_size=16)
        self.knobs = {"rows_per_page": self.draws.choice([5_000, 5_000, 3])}
        common = self.draws.choice([Variant.V2, Variant.V2, Variant.V1])
        self.variant = variant or common
        self.limits: dict[str, float] = {
            name: value
            for name, value in limits.drawn(Draws(seed, "limits")).items()
            if self.has(f"limit {name}")
        }
        self.network = WorldNetwork(self)
        self.clocks = [
            WorldClock(self.loop, self.draws.randrange(-APART_US, APART_US)) for _ in range(COPIES)
        ]
        self.ring = Ring(
            [
                Node(f"10.0.0.{n}", DATACENTER, UUID(int=n), n, clock.now_us)
                for n, clock in enumerate(self.clocks, 1)
            ],
            network=self.network,
            rng=Draws(seed, "ring"),
            seen=self.seen,
        )
        self.transports: list[WorldTransport] = []
        self.transports_in_use: list[WorldTransport] = []
        self.leaps_until_s = self.away_until_s = 0.0
        self.themes = self.draws.sample(list(THEMES), k=self.draws.choice([1, 1, 2]))
        self.pace = self.draws.choice([1, 1, 1, 12])
        send = [THEMES[one] for one in self.themes] if sends is None else [sends]
        if self.weather is not None:
            self.limits |= self.weather.limits
            self.ring.has_hints = self.weather.has_handoff
            self.pace = self.weather.pace or self.pace
        self._draws_of_spots = Draws(seed, "at spots")
        every = (*map(spelled, spots), *spots_of(Draws(seed, "spots"), send))
        self.spots = [one for one in every if self.has(one.name)]
        self.has_faults = True
        self.spelled_until_s = self.slept_s = 0.0
        self.sent: Counter[tuple[str, str]] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.may_kill: Callable[[WorldTransport], bool] = lambda _: False
        self._away: tuple[Any, ...] | None = None
        self.on_event: list[Callable[[str, Mapping[str, Any]], None]] = []
        self.unhinted = Unhinted()
        self._clients: list[Client] = []

    def has(self, part: str) -> bool:
        """Note a part of the plan; return whether it is played."""
        self.parts.append(part)
        return part not in self.without

    def spot_at(self, request: Request, client: WorldTransport) -> Spot | None:
        """Return the trouble that a client has with this statement now."""
        if client not in self.transports_in_use:
            return None
        name = request.statement.name
        for one in self.spots:
            if one.is_at(client.name, name, self.sent[client.name, name]):
                is_fatal = one.action.startswith("kill")
                # A spelled one leaves the draws of the others alone.
                happens = one.number or self._draws_of_spots.random() < one.share
                if happens and (not is_fatal or self.may_kill(client)):
                    return one
        return None

    def is_away(self, request: Request) -> bool:
        """Whether a statement is about the bucket that does not answer."""
        if self.loop.time() >= self.away_until_s or not request.rows:
            self._away = None
            return False
        if self._away is None and request.statement.name == "read_bucket":
            self._away = tuple(request.rows[0][:2])
        table = request.statement.cql
        return (
            self._away is not None
            and any(f".{name} " in f"{table} " for name in ("bucket", "message"))
            and all(one in request.rows[0] for one in self._away)
        )

    def loses_hint(self, request: Request, draws: Draws) -> bool:
        """Whether an expiry hint is lost though it is answered."""
        share = 0.0 if self.weather is None else self.weather.hints_lost
        return bool(share) and request.statement.name == "write_hint" and draws.random() < share

    def note(self, who: str, request: Request) -> None:
        """Note a statement that is sent."""
        self.statements += 1
        self.sent[who, request.statement.name] += 1
        rows = [[_UNSET if one is UNSET_VALUE else one for one in row] for row in request.rows]
        line = (round(self.loop.time(), 9), who, request.statement.name, repr(rows))
        self._hash.update(repr(line).encode())
        if self.trace is not None:
            self.trace.append(line)

    def note_answer(self, who: str, answer: Page | BaseException) -> None:
        """Note what a client is told."""
        told = repr(answer) if isinstance(answer, BaseException) else repr(answer.rows)
        self._hash.update(f"{who}: {told}".encode())

    def _tell_event(self, name: str, fields: Mapping[str, Any]) -> None:
        for told in self.on_event:
            told(name, fields)

    @property
    def digest(self) -> str:
        """The hash of all statements and answers: the same for the same seed."""
        return self._hash.hexdigest()

    def connect(self) -> Client:
        """Open a client; outside of the loop."""
        name = f"client {len(self.transports)}"
        clock = WorldClock(self.loop, self.draws.randrange(-3_600_000_000, 3_600_000_000))
        clock.resumes_s = self.leaps_until_s
        transport = WorldTransport(self, name, clock)
        self.transports.append(transport)
        options = ConnectionOptions(
            contact_points=(("10.0.0.1", 9042),),
            keyspace="cassieq",
            datacenter=DATACENTER,
            connect_timeout_s=10.0,
        )
        entropy = Entropy(Draws(self.seed, name))
        session = CqlSession(options, transport=transport, clock=clock, entropy=entropy)
        client = Client(options, session=session)
        self._clients.append(client)
        return client

    async def connected(self) -> tuple[AsyncClient, WorldTransport]:
        """Open a client from within the world."""
        client = await self.loop.run_in_executor(None, self.connect)
        transport = client._session.transport
        assert isinstance(transport, WorldTransport)
        return for_tasks(client), transport

    def played(self, play: Play[T]) -> T:
        """Let a play make its tables and do its work, and end all clients; return its outcome."""
        play.prepare()
        main = self.loop.create_task(play.work())
        self.loop.finish(main)
        outcome = main.result()
        self.close()
        return outcome

    async def leap(self, seconds: float) -> None:
        """Let so much time pass while all processes stand still; see `Ring.compact` for the end."""
        self.leaps_until_s = self.loop.time() + seconds
        for one in self.transports:
            one.clock.resumes_s = max(one.clock.resumes_s, self.leaps_until_s)
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """End all clients."""
        for client in self._clients:
            transport = client._session.transport
            if isinstance(transport, WorldTransport) and transport.is_dead:
                client._session.is_closed = True  # else it warns that nobody closed it
            else:
                client.close()
        self.loop.finish(self.loop.create_task(asyncio.sleep(1)))

    @contextmanager
    def running(self) -> Iterator[World]:
        """Be the engine's place in this process."""
        before = portal._portal
        portal._portal = self.portal
        # What a world left is not waited for by the next one.
        kept = portal._under_way.copy(), portal._finishing.copy()
        portal._under_way.clear()
        portal._finishing.clear()
        was_on = gc.isenabled()
        gc.disable()  # it runs finalizers at any time
        gc.freeze()  # it looks for the world's garbage, and not at all that was there before
        try:
            with limits.limited(self.limits), limits.counted(self.seen, self._tell_event):
                yield self
        finally:
            # A task that failed says so when it is collected, and so does one that never ended.
            # Nobody ends the tasks of a client that was killed.
            hook = sys.unraisablehook
            if any(one.is_dead for one in self.transports):
                sys.unraisablehook = lambda _: None  # they end outside of their context
                self.loop.end_tasks()
            gc.collect()
            failures = list(self.loop.failures)
            self.loop.drop()
            gc.collect()
            gc.unfreeze()
            sys.unraisablehook = hook
            portal._portal = before
            for one, were in zip((portal._under_way, portal._finishing), kept, strict=True):
                one.clear()
                one.update(were)
            if was_on:
                gc.enable()
        if failures:
            raise AssertionError(f"{len(failures)} errors that nobody was told: {failures[:3]}")
