"""Seeds of schedules alone: who owns them, dispatches, repairs and consumes, among faults.

Each slot is put exactly once (I11), whatever dies, however many dispatchers run, through
alterations, pauses, deletions and new lives of schedule and queue. See docs/design/schedules.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import multiprocessing
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from cassieq_spark.errors import (
    CassieqError,
    QueueDeleted,
    QueueNotFound,
    ScheduleNotFound,
)
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.recurring import (
    FILLED_TO,
    Definition,
    Misfire,
    Status,
)
from cassieq_spark.model.slots import Slot
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.schedules.define import alter, create, delete, finish
from cassieq_spark.queue.schedules.dispatch import Touchers, dispatch
from cassieq_spark.queue.schedules.touch import Fill, Toucher
from cassieq_spark.recent import Recent
from cassieq_spark.store import portal
from cassieq_spark.testing.simulated.paxos import Variant
from tests.simulation.draws import Draws
from tests.simulation.faults import Mischief
from tests.simulation.spots import OF_SCHEDULES
from tests.simulation.world import COPIES, DATACENTER, START_US, World, WorldTransport, alone
from tests.storm.checker import Anomaly

if TYPE_CHECKING:
    from cassieq_spark.aio.client import AsyncClient
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.store import Store

QUEUES = ("jobs", "more")
FAULTS_S = (20.0, 60.0, 120.0)
PEACE_S = 160.0
LATE_S = 60.0
"""What is due in the last minute need not be there at the end."""

APART_US = 600_000
"""How far the clocks of clients, and of this judge, are apart at most."""

BEGUN_US = START_US + 5_000_000
"""By then the queues were first created."""

SETTLED_S = 90.0
"""So long after the last fault, dispatchers have caught up: nothing is missed any more."""


class Put(NamedTuple):
    """A message that was got.

    Attributes:
        life, version: Those of its schedule when it was put.
    """

    name: str
    life: int
    version: int
    at_us: int
    message_id: str


@dataclass
class Era:
    """A definition that was in force.

    Attributes:
        begun_us: When the call that brought it began.
        sure_from_us: When that ended; None: it failed, so it may never have been in force.
        sure_until_us, ended_us: The same of the call that ended it.
        left_us: Slots that could not be taken back.
    """

    name: str
    life: int
    version: int
    definition: Definition
    begun_us: int
    sure_from_us: int | None = None
    sure_until_us: int | None = None
    ended_us: int | None = None
    is_active: bool = True
    queue: str = QUEUES[0]


class Purge(NamedTuple):
    """A queue was purged between these times."""

    queue: str
    begun_us: int
    ended_us: int


class Book:
    """All that was said."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.eras: list[Era] = []
        self.got: list[Put] = []
        self.queues_us = dict.fromkeys(QUEUES, 0)
        self.purges: list[Purge] = []
        self.again: Counter[tuple[str, int, int]] = Counter()
        self.sure_again: Counter[tuple[str, int, int]] = Counter()
        self.lives = itertools.count()
        self.versions = itertools.count()

    def now_us(self) -> int:
        return START_US + round(self._world.loop.time() * 1e6)

    def judged(self, peace_us: int) -> list[Anomaly]:
        """Return what is wrong."""
        return [*self._twice(), *self._strange(), *self._missing(peace_us)]

    def _twice(self) -> list[Anomaly]:
        ids: dict[tuple[str, int, int], set[str]] = {}
        for one in self.got:
            ids.setdefault((one.name, one.life, one.at_us), set()).add(one.message_id)
        found = [
            Anomaly(kind="slot twice", what=f"{slot}: {some}")
            for slot, some in ids.items()
            if len(some) > 1 + self.again[slot]
        ]
        gone = {one.queue for one in self.purges} or max(self.queues_us.values()) > BEGUN_US
        return found + [
            Anomaly(kind="not put again", what=f"{slot}: {ids.get(slot)}")
            for slot, count in self.sure_again.items()
            if not gone and len(ids.get(slot, ())) < count
        ]

    def _strange(self) -> list[Anomaly]:
        eras = {(one.name, one.life, one.version): one for one in self.eras}
        found = []
        for one in self.got:
            era = eras[one.name, one.life, one.version]
            first = next(era.definition.slots(Slot(one.at_us - 1)), None)
            is_again = bool(self.again[one.name, one.life, one.at_us])
            if not is_again and (first is None or first.at_us != one.at_us):
                found.append(Anomaly(kind="no slot", what=f"{one} of {era}"))
            elif not era.is_active and not is_again:
                found.append(Anomaly(kind="put while paused", what=f"{one} of {era}"))
            elif era.ended_us is not None and one.at_us > era.ended_us + APART_US:
                found.append(Anomaly(kind="outlived", what=f"{one} of {era}"))
            elif one.at_us < era.begun_us - APART_US and not is_again:
                found.append(Anomaly(kind="before its time", what=f"{one} of {era}"))
        return found

    def _missing(self, peace_us: int) -> list[Anomaly]:
        got = {(one.name, one.life, one.at_us) for one in self.got}
        found = []
        until_us = self.now_us() - round(LATE_S * 1e6)
        for era in self.eras:
            if era.sure_from_us is None or not era.is_active:
                continue
            its = era.definition
            since_us = max(era.sure_from_us, self.queues_us[era.queue])
            if its.misfire is not Misfire.ALL:
                since_us = max(since_us, peace_us + round(SETTLED_S * 1e6))
            end_us = until_us if era.sure_until_us is None else min(until_us, era.sure_until_us)
            ahead_us = (FILLED_TO + 1) * its.horizon_us
            purges = [
                one
                for one in self.purges
                if one.queue == era.queue and era.begun_us <= one.ended_us
            ]
            for slot in its.slots(Slot(since_us + APART_US)):
                if slot.at_us >= end_us - APART_US:
                    break
                is_purged = any(
                    one.begun_us - its.jitter_us - LATE_S * 1e6
                    <= slot.at_us
                    <= one.ended_us + ahead_us
                    for one in purges
                )
                if (era.name, era.life, slot.at_us) not in got and not is_purged:
                    found.append(Anomaly(kind="slot missing", what=f"{slot} of {era}"))
        return found


@dataclass
class Result:
    """What became of a seed."""

    seed: int
    anomalies: list[Anomaly]
    digest: str
    statements: int
    seen: Any
    book: Book


@alone
def run(seed: int, *, trace: list[tuple[Any, ...]] | None = None) -> Result:
    """Run one seed."""
    world = World(seed, trace=trace, sends=OF_SCHEDULES)
    world.pace = 1
    with world.running():
        play = Play(world)
        anomalies = world.played(play)
    return Result(seed, anomalies, world.digest, world.statements, world.seen, play.book)


class Play:
    """The clients of a world."""

    def __init__(self, world: World) -> None:
        self.book = Book(world)
        self._world = world
        self._draws = Draws(world.seed, "schedules")
        self._settings: dict[str, Any] = {}
        self._is_over = False
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._names = ["report", "mail"][: self._draws.choice([1, 1, 2])]
        self._recreates = self._draws.random() < 0.25
        self._consumes = self._draws.choice([4.0, 12.0, 40.0])
        self._dispatches = self._draws.choice([(1.0, 3.0), (2.0, 15.0), (8.0, 40.0)])
        self._repairs = self._draws.choice([(2.0, 5.0), (20.0, 60.0)])

    def prepare(self) -> None:
        """Make the tables and the queue."""
        draws, world = self._draws, self._world
        wanted, world.variant = world.variant, Variant.V2
        client = world.connect()
        client.bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        world.variant = wanted  # `bootstrap` refuses some
        self._settings = {
            "bucket_size": draws.choice([4, 10, 1000]),
            "priorities": draws.choice([1, 2]),
            "shards": draws.choice([1, 2]),
            "linger": 0.02,
            "repair_timeout": 2.0,
            "schedule_period": 60,
            "schedule_after": draws.choice([60, 3_600]),
        }
        for queue in QUEUES:
            client.create_queue(queue, **self._settings)
            self.book.queues_us[queue] = self.book.now_us()

    async def work(self) -> list[Anomaly]:
        world, draws = self._world, self._draws
        owner = world.loop.create_task(self._own())
        for _ in range(draws.choice([1, 2, 3])):
            await self._begin()
        mischief = Mischief(world, world.transports_in_use)
        mischief._kinds = [one for one in mischief._kinds if one != mischief.hush]
        successors = world.loop.create_task(self._replace())
        if mischief._kinds:
            await mischief.work(world.loop.time() + draws.choice(FAULTS_S))
        mischief.end()
        successors.cancel()
        self._dispatches = (1.0, 3.0)  # no outage is longer than a horizon any more
        await self._begin()
        peace_us = self.book.now_us()
        await asyncio.sleep(PEACE_S / 2)
        self._is_over = True
        await asyncio.wait_for(owner, 900)
        await asyncio.sleep(PEACE_S / 2)
        client, _ = await world.connected()
        for name in QUEUES:
            await self._take(await client.queue(name), 100)
        for transport in world.transports_in_use:
            for actor in transport.actors:
                actor.cancel()
        return [*self.book.judged(peace_us), *await self._rows(client)]

    async def _rows(self, client: AsyncClient) -> list[Anomaly]:
        store = client._sync._store
        rows = await store.timetable.read_all()
        return [
            Anomaly(kind="row not settled", what=f"{one}")
            for one in rows
            if one.status is Status.DELETING or one.state.unproven or one.state.revoking
        ]

    async def _begin(self) -> None:
        """Begin a client that dispatches, consumes and repairs."""
        world = self._world
        client, transport = await world.connected()
        world.transports_in_use.append(transport)
        name = transport.name
        for work in (self._dispatch, self._consume, self._repair):
            draws = Draws(world.seed, f"{work.__name__} of {name}")
            task = world.loop.create_task(work(client, transport, draws))
            transport.actors.append(task)

    async def _replace(self) -> None:
        while True:
            await asyncio.sleep(3)
            alive = [one for one in self._world.transports_in_use if not one.is_dead]
            if len(alive) < 2:
                with suppress(CassieqError):
                    await self._begin()

    async def _dispatch(self, client: AsyncClient, at: WorldTransport, draws: Draws) -> None:
        touchers: Touchers = Recent(2)
        while True:
            await at.clock.sleep(draws.choice(self._dispatches))
            with suppress(CassieqError):
                done = await portal.asked(dispatch(client._sync._store, touchers))
                self._world.seen["put by a schedule"] += done.put
                self._world.seen["problem of a schedule"] += len(done.problems)

    async def _consume(self, client: AsyncClient, at: WorldTransport, draws: Draws) -> None:
        queues: dict[str, AsyncQueue] = {}
        while True:
            await at.clock.sleep(draws.random() * self._consumes)
            name = draws.choice(QUEUES)
            try:
                if name not in queues:
                    queues[name] = await client.queue(name)
                await self._take(queues[name], draws.choice([5, 50]))
            except (QueueDeleted, QueueNotFound):
                queues.pop(name, None)
            except CassieqError:
                continue

    async def _take(self, queue: AsyncQueue, most: int) -> None:
        while messages := await queue.get(most, visibility_timeout=10):
            for one in messages:
                name, life, version = one.body.decode().split("|")
                at = datetime.fromisoformat(one.headers["cassieq-slot"])
                self.book.got.append(
                    Put(name, int(life), int(version), us_of(at), str(one.message_id))
                )
            await queue.ack(messages)

    async def _repair(self, client: AsyncClient, at: WorldTransport, draws: Draws) -> None:
        while True:
            await at.clock.sleep(draws.choice(self._repairs))
            with suppress(CassieqError):
                await client.repair(full=draws.random() < 0.2)

    # --- the owner, whose client may die, and another one comes ----------------------------------

    async def _own(self) -> None:
        draws = Draws(self._world.seed, "owner")
        lives: dict[str, Era | None] = dict.fromkeys(self._names)
        client, transport = await self._client()
        while not self._is_over:
            name = draws.choice(self._names)
            if transport.is_dead:
                client, transport = await self._client()
            era = lives[name]
            store = client._sync._store
            if self._recreates and draws.random() < 0.1:
                await self._recreate(client, transport, draws.choice(QUEUES))
            elif draws.random() < 0.04:
                await self._purge(client, transport, draws.choice(QUEUES))
            elif era is None or (era.sure_from_us is None and draws.random() < 0.5):
                lives[name] = await self._create(store, transport, name, draws)
            else:
                lives[name] = await self._change(store, transport, era, draws)
            await asyncio.sleep(draws.choice([0.5, 2.0, 8.0, 20.0]))
        for name, era in lives.items():
            last = era
            while last is None or last.sure_from_us is None:
                if transport.is_dead:
                    client, transport = await self._client()
                last = await self._create(client._sync._store, transport, name, draws)
                await asyncio.sleep(5)

    async def _lane(self, at: WorldTransport, store: Store, queue: str, draws: Draws) -> Lane:
        """Open a queue; or use what was opened long ago, of a queue that may be gone."""
        held = self._lanes.get((at.name, queue))
        if held is not None and draws.random() < 0.3:
            self._world.seen["lane held"] += 1
            return held
        lane: Lane = await self._called(at, open_lane(store, QueueName(queue)))
        if held is None or draws.random() < 0.5:
            self._lanes[at.name, queue] = lane
        return lane

    async def _purge(self, client: AsyncClient, at: WorldTransport, queue: str) -> None:
        begun_us = self.book.now_us()
        self.book.purges.append(Purge(queue, begun_us, 1 << 62))
        with suppress(CassieqError):
            opened = await self._called(at, client.queue(queue))
            await self._called(at, opened.purge())
            self.book.purges[-1] = Purge(queue, begun_us, self.book.now_us())
            self._world.seen["purge"] += 1

    async def _client(self) -> tuple[AsyncClient, WorldTransport]:
        while True:
            with suppress(CassieqError):
                client, transport = await self._world.connected()
                self._world.transports_in_use.append(transport)
                return client, transport
            await asyncio.sleep(1)

    def _definition(self, name: str, life: int, version: int, draws: Draws) -> Definition:
        horizon_us = draws.choice([10, 40]) * 1_000_000
        body = f"{name}|{life}|{version}".encode()
        its = Definition(
            horizon_us=horizon_us,
            misfire=draws.choice([Misfire.ALL, Misfire.ALL, Misfire.LATEST, Misfire.SKIP]),
            catch_up=10_000,
            jitter_us=draws.choice([0, 0, 3_000_000]),
            priority=draws.choice([0, 1]),
            body=body,
        )
        match draws.choice(["every", "every", "cron", "fixed", "once"]):
            case "every":
                first_us = START_US + draws.choice([0, 7_000_000])
                return replace(
                    its, every_us=draws.choice([2, 5, 20]) * 1_000_000, start_us=first_us
                )
            case "cron":
                return replace(its, cron="* * * * *", timezone="Europe/Berlin")
            case "fixed":
                zone = draws.choice(["Asia/Tokyo", "America/New_York", "Asia/Kathmandu"])
                cron = draws.choice(["0-59 0-23 * * *", "0-59/2 0-23 * * *"])
                return replace(its, cron=cron, timezone=zone)
            case _:
                wait_us = draws.choice([5, 30]) * 1_000_000
                at_us = (self.book.now_us() + wait_us) // 1_000_000 * 1_000_000
                return replace(its, at_us=at_us)

    async def _create(self, store: Store, at: WorldTransport, name: str, draws: Draws) -> Era:
        """Delete whatever there may be, and create it, perhaps for another queue."""
        book = self.book
        life, version = next(book.lives), next(book.versions)
        its = self._definition(name, life, version, draws)
        queue = draws.choice(QUEUES)
        era = Era(name, life, version, its, book.now_us(), queue=queue)
        with suppress(CassieqError):
            before = self._ending(name)
            if before:
                with suppress(ScheduleNotFound):
                    row = await self._called(at, store.timetable.find(name))
                    if row is not None and row.value.definition is not None:
                        await self._called(at, finish(store, row.value))
            for one in before:
                one.ended_us = book.now_us()
            lane = await self._lane(at, store, queue, draws)
            era.begun_us = book.now_us()
            book.eras.append(era)
            await self._called(at, create(lane, name, lambda *_: its))
            era.sure_from_us = book.now_us()
            self._world.seen["schedule: create"] += 1
        return era

    def _ending(self, name: str) -> list[Era]:
        found = [one for one in self.book.eras if one.name == name and one.ended_us is None]
        for one in found:
            one.sure_until_us = one.sure_until_us or self.book.now_us()
        return found

    async def _change(self, store: Store, at: WorldTransport, era: Era, draws: Draws) -> Era | None:
        book = self.book
        what = draws.choice(["alter", "alter", "alter", "pause", "delete", "backfill"])
        if not era.is_active and what == "pause":
            what = "alter"
        if what == "backfill" and era.sure_from_us is None:
            what = "alter"  # else it is unknown whose slots are put once more
        if what == "backfill":
            await self._fill(store, at, era, draws)
            return era
        before = self._ending(era.name)
        version = next(book.versions)
        its = self._definition(era.name, era.life, version, draws)
        after = Era(
            *(era.name, era.life, version, its, book.now_us()),
            is_active=what != "pause",
            queue=era.queue,
        )
        status = Status.ACTIVE if what == "alter" else Status.PAUSED
        with suppress(CassieqError):
            lane = await self._lane(at, store, era.queue, draws)
            if what == "delete":
                await self._called(at, delete(lane, era.name))
                after = None
            else:
                book.eras.append(after)
                await self._called(at, alter(lane, era.name, lambda *_: its, status))
                after.sure_from_us = book.now_us()
            for one in before:
                one.ended_us = book.now_us()
            self._world.seen[f"schedule: {what}"] += 1
        return after

    async def _fill(self, store: Store, at: WorldTransport, era: Era, draws: Draws) -> None:
        """Put some slots of the past once more, or run it at once."""
        now_us = self.book.now_us() - APART_US
        slots = era.definition.missed(Slot(now_us - 20_000_000), now_us)[-5:]
        if draws.random() < 0.4:
            slots = [Slot(self.book.now_us() // 1_000 * 1_000)]  # `Schedules.run_now`
        keys = [(era.name, era.life, one.at_us) for one in slots]
        self.book.again.update(keys)
        fill = Fill(draws.randbytes(16), slots)
        with suppress(CassieqError):
            lane = await self._lane(at, store, era.queue, draws)
            for _ in range(5):
                (found,) = await self._called(at, Toucher(lane).touch([era.name], again=fill))
                if found.row is None or found.problem is not None:
                    return
                if found.has_filled:
                    self.book.sure_again.update(keys)
                    self._world.seen["schedule: backfill"] += 1
                    return

    async def _recreate(self, client: AsyncClient, at: WorldTransport, queue: str) -> None:
        for _ in range(50):
            try:
                with suppress(QueueNotFound, QueueDeleted):
                    await self._called(at, client.delete_queue(queue, force=True))
                await self._called(at, client.create_queue(queue, **self._settings))
            except CassieqError:
                await asyncio.sleep(2)
                if at.is_dead:
                    client, at = await self._client()
            else:
                self.book.queues_us[queue] = self.book.now_us()
                self._world.seen["queue created again"] += 1
                return

    async def _called(self, at: WorldTransport, work: Any) -> Any:
        """Wait for a call, unless its client dies."""
        task = asyncio.ensure_future(work if not hasattr(work, "cr_frame") else portal.asked(work))
        at.actors.append(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not at.is_dead:
                raise
            raise CassieqError("its client was killed") from None


def main() -> None:
    """Run seeds, and print what is wrong; the exit code is 1 if anything is."""
    parser = argparse.ArgumentParser(prog="tests.simulation.schedules", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    statements = wrong = 0
    seeds = range(given.first, given.first + given.count)
    with multiprocessing.Pool(initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        for seed, anomalies, sent, events in pool.imap(_result_of, seeds):
            seen += events
            statements += sent
            wrong += bool(anomalies)
            if anomalies:
                print(seed, len(anomalies), *anomalies[:3], sep="\n  ", flush=True)  # noqa: T201
    print(f"{given.count} seeds of schedules, {wrong} wrong, {statements:,} statements")  # noqa: T201
    for name, count in sorted(seen.items()):
        print(f"  {count:9,} {name}")  # noqa: T201
    sys.exit(bool(wrong))


def _result_of(seed: int) -> tuple[int, list[str], int, Counter[str]]:
    try:
        done = run(seed)
    except Exception as error:  # noqa: BLE001 - the simulation's own, or what a client raised
        return seed, [f"{type(error).__name__}: {error}"], 0, Counter()
    return seed, list(map(str, done.anomalies)), done.statements, done.seen


if __name__ == "__main__":
    main()
