"""Seeds of schedules alone: who owns them, dispatches, repairs and consumes, among faults.

Each slot is put exactly once (I11), whatever dies, however many dispatchers run, through
alterations, pauses, deletions and new lives of schedule and queue. See docs/design/schedules.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cassieq_spark.errors import (
    CassieqError,
    QueueDeleted,
    QueueNotFound,
    ScheduleNotFound,
)
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.recurring import Definition, Misfire, Status
from cassieq_spark.model.slots import Slot
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.schedules.define import alter, create, delete
from cassieq_spark.queue.schedules.dispatch import dispatch
from cassieq_spark.store import portal
from tests.simulation.draws import Draws
from tests.simulation.faults import Mischief
from tests.simulation.spots import OF_SCHEDULES
from tests.simulation.world import COPIES, DATACENTER, START_US, World, WorldTransport, alone
from tests.storm.checker import Anomaly

if TYPE_CHECKING:
    from datetime import datetime

    from cassieq_spark.aio.client import AsyncClient
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.schedules.touch import Touched
    from cassieq_spark.store.store import Store

QUEUE = "jobs"
FAULTS_S = (20.0, 60.0, 120.0)
PEACE_S = 160.0
LATE_S = 60.0
"""What is due in the last minute need not be there at the end."""

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
    left_us: set[int] = field(default_factory=set)


class Book:
    """All that was said."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.eras: list[Era] = []
        self.got: list[Put] = []
        self.queues_us: list[int] = []
        self.lives = itertools.count()
        self.versions = itertools.count()
        self.unsure = 0

    def now_us(self) -> int:
        return START_US + round(self._world.loop.time() * 1e6)

    def judged(self, peace_us: int) -> list[Anomaly]:
        """Return what is wrong."""
        return [*self._twice(), *self._strange(), *self._missing(peace_us)]

    def _twice(self) -> list[Anomaly]:
        ids: dict[tuple[str, int, int], set[str]] = {}
        for one in self.got:
            ids.setdefault((one.name, one.life, one.at_us), set()).add(one.message_id)
        return [
            Anomaly(kind="slot twice", what=f"{slot}: {some}")
            for slot, some in ids.items()
            if len(some) > 1
        ]

    def _strange(self) -> list[Anomaly]:
        eras = {(one.name, one.life, one.version): one for one in self.eras}
        found = []
        for one in self.got:
            era = eras[one.name, one.life, one.version]
            first = next(era.definition.slots(Slot(one.at_us - 1)), None)
            if first is None or first.at_us != one.at_us:
                found.append(Anomaly(kind="no slot", what=f"{one} of {era}"))
            elif not era.is_active:
                found.append(Anomaly(kind="put while paused", what=f"{one} of {era}"))
            elif era.ended_us is not None and one.at_us > era.ended_us + 500_000:
                if one.at_us not in era.left_us:
                    found.append(Anomaly(kind="outlived", what=f"{one} of {era}"))
        return found

    def _missing(self, peace_us: int) -> list[Anomaly]:
        got = {(one.name, one.life, one.at_us) for one in self.got}
        found = []
        until_us = self.now_us() - round(LATE_S * 1e6)
        for era in self.eras:
            if era.sure_from_us is None or not era.is_active:
                continue
            since_us = max(era.sure_from_us, self.queues_us[-1])
            if era.definition.misfire is not Misfire.ALL:
                since_us = max(since_us, peace_us + round(SETTLED_S * 1e6))
            end_us = until_us if era.sure_until_us is None else min(until_us, era.sure_until_us)
            for slot in era.definition.slots(Slot(since_us + 500_000)):
                if slot.at_us >= end_us - 500_000:
                    break
                if (era.name, era.life, slot.at_us) not in got:
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
        play.prepare()
        main = world.loop.create_task(play.work())
        world.loop.finish(main)
        anomalies = main.result()
        world.close()
    return Result(seed, anomalies, world.digest, world.statements, world.seen, play.book)


class Play:
    """The clients of a world."""

    def __init__(self, world: World) -> None:
        self.book = Book(world)
        self._world = world
        self._draws = Draws(world.seed, "schedules")
        self._settings: dict[str, Any] = {}
        self._is_over = False
        self._names = ["report", "mail"][: self._draws.choice([1, 1, 2])]
        self._recreates = self._draws.random() < 0.25
        self._consumes = self._draws.choice([4.0, 12.0, 40.0])
        self._dispatches = self._draws.choice([(1.0, 3.0), (2.0, 15.0), (8.0, 40.0)])
        self._repairs = self._draws.choice([(2.0, 5.0), (20.0, 60.0)])

    def prepare(self) -> None:
        """Make the tables and the queue."""
        draws, world = self._draws, self._world
        client = world.connect()
        from cassieq_spark.testing.simulated.paxos import Variant

        wanted, client._session.transport.variant = world.variant, Variant.V2  # type: ignore[attr-defined]
        client.bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        client._session.transport.variant = wanted  # type: ignore[attr-defined]
        self._settings = {
            "bucket_size": draws.choice([4, 10, 1000]),
            "priorities": draws.choice([1, 2]),
            "shards": draws.choice([1, 2]),
            "linger": 0.02,
            "repair_timeout": 2.0,
            "schedule_period": 60,
            "schedule_after": draws.choice([60, 3_600]),
        }
        client.create_queue(QUEUE, **self._settings)
        self.book.queues_us.append(self.book.now_us())

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
        owner.result()
        await asyncio.sleep(PEACE_S / 2)
        client, transport = await world.connected()
        await self._take(await client.queue(QUEUE), 100)
        for one in (one for one in world.transports_in_use if not one.is_dead):
            for actor in one.actors:
                actor.cancel()
        del transport
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
        while True:
            await at.clock.sleep(draws.choice(self._dispatches))
            with suppress(CassieqError):
                done = await portal.asked(dispatch(client._sync._store))
                self._world.seen["put by a schedule"] += done.put
                self._world.seen["problem of a schedule"] += len(done.problems)

    async def _consume(self, client: AsyncClient, at: WorldTransport, draws: Draws) -> None:
        queue = None
        while True:
            await at.clock.sleep(draws.random() * self._consumes)
            try:
                queue = queue or await client.queue(QUEUE)
                await self._take(queue, draws.choice([5, 50]))
            except (QueueDeleted, QueueNotFound):
                queue = None
            except CassieqError:
                continue

    async def _take(self, queue: AsyncQueue, most: int) -> None:
        while messages := await queue.get(most, visibility_timeout=10):
            for one in messages:
                name, life, version = one.body.decode().split("|")
                at: datetime = _time_of(one.headers["cassieq-slot"])
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
            if self._recreates and draws.random() < 0.08:
                await self._recreate(client, transport)
            elif era is None or era.sure_from_us is None and draws.random() < 0.5:
                lives[name] = await self._create(store, transport, name, draws)
            else:
                lives[name] = await self._change(store, transport, era, draws)
            await asyncio.sleep(draws.choice([1.0, 5.0, 25.0, 60.0]))
        for name, era in lives.items():
            if era is None or era.sure_from_us is None:
                while (
                    era := await self._create(store, transport, name, draws)
                ).sure_from_us is None:
                    await asyncio.sleep(5)
                    if transport.is_dead:
                        client, transport = await self._client()
                        store = client._sync._store

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
                return replace(its, cron="0-59 0-23 * * *", timezone="Asia/Tokyo")
            case _:
                wait_us = draws.choice([5, 30]) * 1_000_000
                at_us = (self.book.now_us() + wait_us) // 1_000_000 * 1_000_000
                return replace(its, at_us=at_us)

    async def _create(self, store: Store, at: WorldTransport, name: str, draws: Draws) -> Era:
        """Create it, or if that fails, delete whatever there may be."""
        book = self.book
        life, version = next(book.lives), next(book.versions)
        its = self._definition(name, life, version, draws)
        era = Era(name, life, version, its, book.now_us())
        with suppress(CassieqError):
            lane = await self._called(at, open_lane(store, QueueName(QUEUE)))
            before = [one for one in book.eras if one.name == name and one.ended_us is None]
            for one in before:
                one.sure_until_us = one.sure_until_us or book.now_us()
            if before:
                with suppress(ScheduleNotFound):
                    found = await self._called(at, delete(lane, name))
                    self._leave(before, found)
            for one in before:
                one.ended_us = book.now_us()
            era.begun_us = book.now_us()
            book.eras.append(era)
            await self._called(at, create(lane, name, its))
            era.sure_from_us = book.now_us()
        return era

    async def _change(self, store: Store, at: WorldTransport, era: Era, draws: Draws) -> Era | None:
        book = self.book
        what = draws.choice(["alter", "alter", "pause", "delete"])
        if not era.is_active:
            what = draws.choice(["alter", "delete"])
        before = [one for one in book.eras if one.name == era.name and one.ended_us is None]
        for one in before:
            one.sure_until_us = one.sure_until_us or book.now_us()
        version = next(book.versions)
        its = self._definition(era.name, era.life, version, draws)
        after = Era(era.name, era.life, version, its, book.now_us(), is_active=what != "pause")
        status = Status.ACTIVE if what == "alter" else Status.PAUSED
        with suppress(CassieqError):
            lane = await self._called(at, open_lane(store, QueueName(QUEUE)))
            if what == "delete":
                self._leave(before, await self._called(at, delete(lane, era.name)))
                after = None
            else:
                book.eras.append(after)
                found = await self._called(at, alter(lane, era.name, lambda _: its, status))
                self._leave(before, found)
                after.sure_from_us = book.now_us()
            for one in before:
                one.ended_us = book.now_us()
            self._world.seen[f"schedule: {what}"] += 1
        return after

    def _leave(self, before: list[Era], found: Touched) -> None:
        for one in before:
            one.left_us |= {*found.left}

    async def _recreate(self, client: AsyncClient, at: WorldTransport) -> None:
        for _ in range(50):
            try:
                with suppress(QueueNotFound, QueueDeleted):
                    await self._called(at, client.delete_queue(QUEUE, force=True))
                await self._called(at, client.create_queue(QUEUE, **self._settings))
                self.book.queues_us.append(self.book.now_us())
                self._world.seen["queue created again"] += 1
                return
            except CassieqError:
                await asyncio.sleep(2)
                if at.is_dead:
                    client, at = await self._client()

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


def _time_of(text: str) -> datetime:
    from datetime import datetime

    return datetime.fromisoformat(text)


def main() -> None:
    """Run seeds, and print what is wrong."""
    parser = argparse.ArgumentParser(prog="tests.simulation.schedules", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    from collections import Counter

    seen: Counter[str] = Counter()
    statements = wrong = 0
    for seed in range(given.first, given.first + given.count):
        done = run(seed)
        seen += done.seen
        statements += done.statements
        if done.anomalies:
            wrong += 1
            print(seed, len(done.anomalies), *done.anomalies[:3], sep="\n  ", flush=True)  # noqa: T201
    print(f"{given.count} seeds, {wrong} wrong, {statements} statements")  # noqa: T201
    for name, count in sorted(seen.items()):
        print(f"  {count:7} {name}")  # noqa: T201


if __name__ == "__main__":
    main()
