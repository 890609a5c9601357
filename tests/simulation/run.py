"""Run a seed: a world with clients and faults, then its end in peace; judge what they saw."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cassieq_spark.errors import CassieqError
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.queue.get.claim import GRACE_S
from cassieq_spark.testing.simulated.paxos import TOO_LATE, Variant
from tests.children.consumer import key_of
from tests.simulation.actors import (
    Consumer,
    Log,
    Pauser,
    Producer,
    Program,
    Recreator,
    Redriver,
    Repairer,
    settings_of_lives,
)
from tests.simulation.draws import Draws
from tests.simulation.faults import Mischief
from tests.simulation.judge import MAIN, judged
from tests.simulation.streams import Sink, Source
from tests.simulation.world import COPIES, DATACENTER, START_US, World, WorldTransport, alone
from tests.storm.checker import Anomaly, check

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection

    from cassieq_spark.aio.client import AsyncClient
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.client import Client
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.repair.report import Finding, VerifyReport
    from tests.simulation.unhinted import Place
    from tests.storm.history import Entry

FAULTS_S = (3.0, 6.0, 9.0)
PEACE_S = 14.0
"""A node that stopped as the last fault has started again."""

AFTER_A_LEAP_S = 8.0
HINT_WINDOW_S = 10_800.0
"""A node that is away for longer gets no hints any more (``max_hint_window``)."""

LEAPS_S = (700.0, 20_000.0, 100_000.0, 300_000.0)
ENDS_WITHIN_S = 600.0
DRAINED_WITHIN_S = 900.0
WRONG_BY_S = 7_200.0
QUIET = 1
MOST_CLIENTS = 5
HOLD_S = 120.0
SHORTEST_HOLD_S = 2.0
"""What a program leases is its own for so long at least."""

BACK_WITHIN_S, WAITS = 240.0, 12
SILENT_S = 40.0
DEAD = "dead"
PAUSES_SHARE = 0.1
"""The share of worlds in which the queue is paused at times."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a seed.

    Attributes:
        digest: The hash of all statements.
        seen: What has happened, by name.
        parts: See `World`.
    """

    seed: int
    anomalies: list[Anomaly]
    digest: str
    statements: int
    virtual_s: float
    seen: Counter[str]
    history: list[Entry]
    parts: list[str]


@alone
def run(
    seed: int,
    *,
    trace: list[tuple[Any, ...]] | None = None,
    variant: Variant | None = None,
    without: Collection[str] = (),
    is_outside: bool = False,
    spots: Collection[str] = (),
) -> Result:
    """Run one seed; note each statement in ``trace``.

    Args:
        variant: Of Paxos; None: v1 or v2, as the seed draws.
        without: Parts of its plan that are not played.
        is_outside: Whether its world is outside of what is permitted.
        spots: More trouble at statements, spelled as in `tests.simulation.spots`.
    """
    world = World(
        seed, trace=trace, variant=variant, without=without, is_outside=is_outside, spots=spots
    )
    with world.running():
        play = Play(world)
        anomalies = world.played(play)
    history = sorted(play.history, key=lambda entry: entry["at"])
    anomalies += [
        *check(history, dead_letters=DEAD),
        *judged(history),
        *[Anomaly(kind="paxos", what=TOO_LATE)] * world.seen[TOO_LATE],
    ]
    if (weather := world.weather) is not None:
        accepted = {one.kind for one in anomalies if weather.accepts(one)}
        world.seen.update([weather.name, *(f"{kind} in {weather.name}" for kind in accepted)])
        anomalies = [one for one in anomalies if not weather.accepts(one)]
    return Result(
        seed=seed,
        anomalies=anomalies,
        digest=world.digest,
        statements=world.statements,
        virtual_s=world.loop.time(),
        seen=world.seen,
        history=history,
        parts=world.parts,
    )


class Play:
    """The clients of a world, and what they do."""

    def __init__(self, world: World) -> None:
        self.history: list[Entry] = []
        self._world = world
        self._draws = Draws(world.seed, "play")
        self._transports = world.transports_in_use
        self._queries: list[Source | Sink] = []
        self._is_over = False
        self._pauses = Draws(world.seed, "pauses").random() < PAUSES_SHARE
        self._may_start = True
        self._bucket_size = 0
        self._kept_s: float | None = None

    def prepare(self) -> None:
        """Make the tables and the queues."""
        draws = self._draws
        wanted, self._world.variant = self._world.variant, Variant.V2
        client = self._world.connect()
        self._world.variant = wanted  # `bootstrap` refuses some
        client.bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        themes = self._world.themes
        client.create_queue(DEAD, bucket_size=draws.choice([4, 1000]))
        is_hasty = "drops" in themes or draws.random() < 0.5
        settings: dict[str, Any] = {
            "bucket_size": draws.choice([4, 10] if is_hasty else [4, 10, 60, 1000]),
            "priorities": draws.choice([1, 1, 2]),
            "shards": draws.choice([1, 1, 2]),
            "linger": draws.choice([0.02, 0.02, 1.0]),
            "repair_timeout": 2.0 if is_hasty else draws.choice([2.0, 15.0]),
            "fairness": draws.choice([0.0, 0.1]),
        }
        if "keys" in themes or draws.random() < 0.2:
            settings["dedup_window"] = 1_000_000  # a leap is shorter
        if "due" in themes:
            settings |= {"schedule_period": 60, "schedule_after": 60}
        if "dead" in themes or draws.random() < 0.2:
            settings |= {"max_deliveries": draws.choice([2, 4]), "dead_letter_queue": DEAD}
        settings |= self._seldom(settings)
        client.create_queue(MAIN, **settings)
        self._kept_s = settings.get("retention")
        self._bucket_size = settings["bucket_size"]

    def _seldom(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Draw settings that few worlds have, and that change no draw of the others."""
        draws = Draws(self._world.seed, "seldom settings")
        match draws.choice(["linger", "retention", "deaths", *["none"] * 7]):
            case "linger":  # longer than a bucket rests [T12]
                return {"linger": 20.0}
            case "retention" if "sink" not in self._world.themes:
                return {"retention": 60}
            case "deaths" if "dead_letter_queue" not in settings:
                return {"max_deliveries": 2}
        return {}

    async def work(self) -> list[Anomaly]:
        """Let clients work among faults, then in peace; take all that is left."""
        world, draws = self._world, self._draws
        for number in range(draws.randint(2, 3)):
            await self._begin_client(number)
        queries = await self._trouble()
        self._is_over = True
        alive = [one for one in self._transports if not one.is_dead]
        actors = [*queries, *(actor for one in alive for actor in one.actors)]
        late = (await asyncio.wait(actors, timeout=ENDS_WITHIN_S))[1] if actors else set()
        # A client that was killed meanwhile may wait for an answer for ever.
        late -= {actor for one in self._transports if one.is_dead for actor in one.actors}
        if late:
            return [Anomaly(kind="stuck", what=f"{len(late)} programs have not ended: {late}")]
        for actor in (*queries, *(actor for one in self._transports for actor in one.actors)):
            if actor.done() and not actor.cancelled():
                actor.result()
        found, _ = await world.connected()
        report = await found.verify()
        report.findings = [one for one in report.findings if not await self._is_excused(found, one)]
        self.history += [one.tell_committed() for one in self._queries if isinstance(one, Sink)]
        return [*_of_tables(report), *await self._drain()]

    async def _is_excused(self, client: AsyncClient, found: Finding) -> bool:
        """Whether a bucket lacks a hint, and may."""
        if found.kind != "visible_without_hint":
            return False
        lane = found.lane or f"{(await client._sync._lane(found.queue)).lane_id}"
        return (lane, found.bucket) in {(f"{of}", at) for of, at in self._unhinted()}

    def _unhinted(self) -> set[Place]:
        """Return the buckets that may lack a hint: only repair finds what comes back there."""
        return self._world.unhinted.places(START_US + round(self._world.loop.time() * 1e6))

    async def _trouble(self) -> list[asyncio.Task[None]]:
        """Let faults come, and go; return the streaming queries that work among them."""
        world, draws = self._world, self._draws
        mischief = Mischief(world, self._transports)
        self._may_start = not mischief.jumps
        world.on_event.append(self._note_uncounted)
        queries = self._begin_queries() if self._may_start else []
        successors = world.loop.create_task(self._replace_the_dead())
        await mischief.work(world.loop.time() + draws.choice(FAULTS_S) * world.pace)
        if draws.random() < (0.5 if "drops" in world.themes else 0.2) and world.has("leap"):
            await self._leap()
            await mischief.work(world.loop.time() + AFTER_A_LEAP_S)
        while world.spelled_until_s > world.loop.time():  # the others work on meanwhile
            await asyncio.sleep(world.spelled_until_s - world.loop.time())
        mischief.end()
        successors.cancel()
        if world.slept_s >= SHORTEST_HOLD_S:
            self.history.append({"at": world.loop.time(), "who": "somebody", "what": "slept"})
        if any(one.is_dead for one in world.transports):
            self.history.append({"at": world.loop.time(), "who": "somebody", "what": "died"})
        for _ in range(round(PEACE_S)):
            await asyncio.sleep(1)
            if all(one.is_up for one in world.ring.nodes):
                break
        await asyncio.sleep(1)
        return queries

    async def _replace_the_dead(self) -> None:
        """Begin a client for each that has died, but not for a query's, which does so itself."""
        programs = list(self._transports)
        for number in range(len(programs), MOST_CLIENTS if self._may_start else 0):
            while not any(one.is_dead for one in programs):
                await asyncio.sleep(max(0.2, self._world.leaps_until_s - self._world.loop.time()))
            programs = [one for one in programs if not one.is_dead]
            with suppress(CassieqError):
                await self._begin_client(number)
                programs.append(self._transports[-1])

    def _note_uncounted(self, event: str, _: object) -> None:
        now = self._world.loop.time()
        if event in {"claim given back", "lease of an unknown claim given back"}:
            self.history.append({"at": now, "who": "somebody", "what": "uncounted"})
        elif event == "bucket_unreachable":  # what was claimed there may not be given back
            self.history.append({"at": now, "who": "somebody", "what": "failed"})

    async def _leap(self) -> None:
        """Let much time pass while nobody works, perhaps without one of the nodes."""
        world, draws = self._world, self._draws
        world.seen["leap"] += 1
        node = draws.choice(world.ring.nodes)
        is_away = (
            self._may_start and draws.random() < 0.7 and all(one.is_up for one in world.ring.nodes)
        )
        if is_away:
            world.ring.stop(node)
            world.ring.convict(node)
            await asyncio.sleep(draws.choice([0.0, 3.0, 9.0]))
        seconds = draws.choice(LEAPS_S)
        await world.leap(seconds)
        if is_away and seconds > HINT_WINDOW_S:
            world.ring.forget_hints(node)
        for one in world.ring.nodes:
            if one.is_up and draws.random() < 0.7:
                world.ring.compact(one)
        if is_away:
            await asyncio.sleep(draws.choice([0.0, 0.0, 4.0]))
            world.ring.start(node)

    def _begin_queries(self) -> list[asyncio.Task[None]]:
        """Start streaming queries, each with programs of its own."""
        world, draws = self._world, self._draws
        if ("source" in world.themes or draws.random() < 0.05) and world.has("source"):
            source = Source(world, self.history, "source", MAIN, self._bucket_size)
            self._queries.append(source)
            world.on_event.append(source.note_late)
        has_sink = "sink" in world.themes or draws.random() < 0.05
        if has_sink and self._kept_s is None and world.has("sink"):
            self._queries.append(Sink(world, self.history, "sink", MAIN, self._bucket_size))

        async def client() -> tuple[Client, WorldTransport]:
            found, transport = await world.connected()
            self._transports.append(transport)
            return found._sync, transport

        return [
            world.loop.create_task(one.work(client, lambda: self._is_over)) for one in self._queries
        ]

    async def _begin_client(self, number: int) -> None:
        draws, world = self._draws, self._world
        client, transport = await world.connected()
        self._transports.append(transport)
        main, dead = await client.queue(MAIN), await client.queue(DEAD)

        def begin(what: str, make: Callable[[Log], Program]) -> None:
            name = f"{what} of {transport.name}"
            if world.has(name):
                program = make(Log(world, self.history, name, transport.clock))
                work = program.work(lambda: self._is_over)
                transport.actors.append(world.loop.create_task(work))

        themes = world.themes
        if number == 0 or draws.random() < 0.5:
            count = draws.choice([10, 25])
            begin("producer", lambda log: Producer(world, main, log, count, transport.name))
        if number == 0 or draws.random() < 0.7:
            begin("consumer", lambda log: Consumer(world, main, log))
        if draws.random() < (0.4 if "dead" in themes else 0.1):
            begin("dead letters", lambda log: Consumer(world, dead, log))
        if "dead" in themes and draws.random() < 0.3:
            begin("redrive", lambda log: Redriver(world, client, DEAD, log))
        if "lives" in themes and draws.random() < 0.7:
            begin("lives", lambda log: Recreator(world, client, "temp", log))
        if self._pauses:
            begin("pauses", lambda log: Pauser(world, main, log))
        if draws.random() < (0.25 if {"plain", "source"} >= {*themes} else 0.6):
            begin("repair", lambda log: Repairer(world, client, log))

    async def _drain(self) -> list[Anomaly]:
        """Take all that is left, and look at the tables."""
        world = self._world
        client, transport = await world.connected()
        queues = [await client.queue(name) for name in (MAIN, DEAD)]
        log = Log(world, self.history, "drain", transport.clock)
        consumers = [Consumer(world, one, log) for one in queues]
        await self._resume(queues[0], log)
        ends_s = world.loop.time() + DRAINED_WITHIN_S
        if world.weather is not None:  # what a wrong clock has leased or delayed comes back later
            ends_s += WRONG_BY_S
        quiet = left = 0
        is_left = world.weather is not None and world.weather.leaves_to_repair
        waits = 0 if is_left or self._unhinted() else WAITS
        stats: list[QueueStats] = []
        while quiet < QUIET:
            if world.loop.time() > ends_s:
                return [Anomaly(kind="stuck", what=f"{left} messages are left: {stats}")]
            got = 0
            for one in consumers:
                messages = await one.get(100, HOLD_S, 0)
                await one.ack(messages)
                got += len(messages)
            if got:
                continue
            if waits:  # what comes back needs no repair
                waits -= 1
                stats = [await queue.stats() for queue in queues]
                left = sum(one.total - one.scheduled - one.dead for one in stats)
                if left and not waits:
                    return [Anomaly(kind="stuck", what=f"{left} messages wait for repair: {stats}")]
                if left:
                    await asyncio.sleep(BACK_WITHIN_S / WAITS)
                    continue
                waits = 0
            await client.repair(full=True)
            stats = [await queue.stats() for queue in queues]
            left = sum(one.total for one in stats)
            quiet = quiet + 1 if not left else 0
            await asyncio.sleep(5 if got or left > sum(one.scheduled for one in stats) else 30)
        # What a dead writer has left undecided is void some time.
        await asyncio.sleep(SILENT_S)
        await client.repair(full=True)
        await self._take_in_order(consumers[0], queues[0], log)
        for one in consumers:
            await one.ack(await one.get(100, HOLD_S, 0))
        return await self._left_over(client)

    async def _resume(self, queue: AsyncQueue, log: Log) -> None:
        """Resume the queue: whoever has paused it may be dead."""
        if self._pauses:
            op = log.begin("resumes", priorities=[*range(queue.settings.priorities)])
            await queue.resume()
            log.say("resumed", op=op)

    async def _left_over(self, client: AsyncClient) -> list[Anomaly]:
        """Return what is wrong with the tables of drained queues."""
        blocked = await self._blocked(client)
        if "lives" in self._world.themes:
            blocked += await self._one_more_life(client)
        return [*blocked, *_of_tables(await client.verify())]

    async def _one_more_life(self, client: AsyncClient) -> list[Anomaly]:
        """Create, use and delete the queue of the theme "lives"; look what its lives have left."""
        try:
            queue, _ = await client.find_or_create_queue("temp", **settings_of_lives(self._world))
            await queue.put(b"last")
            got: set[bytes] = set()
            who = "last life"  # else it is the process's number
            while messages := await queue.get(100, visibility_timeout=HOLD_S, wait=5, consumer=who):
                got |= {one.body for one in messages}
                await queue.ack(messages)
            await queue.delete(force=True)
        except CassieqError as error:
            return [Anomaly(kind="stuck", what=f"a queue cannot live again: {error}")]
        found = [] if b"last" in got else [Anomaly(kind="lost", what=f"of another life: {got}")]
        await client.repair(full=True)
        store = client._sync.store
        rows = await store.everything.buckets(), await store.everything.messages()
        left = {lane for some in rows for lane, _ in some}
        left -= {lane for row in await store.queues.read_all() for lane in row.lanes}
        for name in (MAIN, DEAD):
            of_queue = await client._sync._lane(name)
            left -= {one for one in left if DueLane.said_by(of_queue.lane_id, one)}
        if left:
            found.append(Anomaly(kind="tables", what=f"rows of lanes that are gone: {left}"))
        return found

    async def _blocked(self, client: AsyncClient) -> list[Anomaly]:
        """Return the lanes of which repair does not drop all: something there never ends."""
        for wait_s in (40, 40, 0):
            found = []
            for name in (MAIN, DEAD):
                of_queue = await client._sync._lane(name)
                for lane in map(of_queue.sibling, of_queue.lanes):
                    monoton = await lane.monotons.find()
                    assert monoton is not None
                    low = (await lane.read_pointers()).repair
                    if (low + 1) * lane.bucket_size < monoton.value.next_id:
                        what = f"{lane.lane_id} of {name}: dropped below {low}, {monoton.value}"
                        found.append(Anomaly(kind="stuck", what=what))
            if not found:
                break
            await asyncio.sleep(wait_s)
            await client.repair(full=True)
        return found

    async def _take_in_order(self, consumer: Consumer, queue: AsyncQueue, log: Log) -> None:
        """Put into the empty queue, in any order of classes; note in which order it comes out."""
        priorities = queue.settings.priorities
        lingers = queue.settings.linger_s > GRACE_S  # so long, no lower class is held back
        if priorities == 1 or queue.settings.fairness or lingers:
            return
        keys = {f"calm.{at}": at * 7 % 5 % priorities for at in range(12)}
        op = log.begin("puts", keys=list(keys), delay=0, ttl=None, shared=False, far=False)
        for key, priority in keys.items():
            await queue.put(key.encode(), priority=priority)
        log.say("put", op=op, stored=list(keys), unknown=[])
        await asyncio.sleep(queue.settings.linger_s + 1)
        got: list[str] = []
        while messages := await consumer.get(5, HOLD_S, 0):
            got += [key_of(one.body) for one in messages]
            await consumer.ack(messages)
        log.say("calm", classes=keys, got=got)


def _of_tables(report: VerifyReport) -> list[Anomaly]:
    # A list that nobody names takes space until the next full repair, no more.
    found = [one for one in report.findings if one.kind != "list_without_sink"]
    return [Anomaly(kind="tables", what=str(one)) for one in (*found, *report.problems)]
