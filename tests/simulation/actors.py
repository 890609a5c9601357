"""The programs of a simulated world: they put, get and repair, and say what they did.

Their entries are those of `tests.storm.history`, in virtual time.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from cassieq_spark.errors import CassieqError, PutAmbiguous, ReceiptExpired
from cassieq_spark.model.moments import time_of
from tests.children.consumer import Pace, named
from tests.simulation.draws import Draws
from tests.simulation.world import START_US

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.aio.client import AsyncClient
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.message import Delivery
    from tests.simulation.world import World, WorldClock
    from tests.storm.history import Entry

FATES = Pace().fates
AGAIN = b"|again"


FAR_S = 190
"""With periods of a minute, a message with this delay waits in a due lane."""

SHARED_S = (5, 40, 40)
"""How long all producers put the same keys, and then others: one of these."""


class Log:
    """One actor's way to write the history of a world."""

    def __init__(self, world: World, history: list[Entry], who: str, clock: WorldClock) -> None:
        self._world = world
        self._history = history
        self.who = who
        self._clock = clock
        self._ops = itertools.count()

    async def sleep(self, seconds: float) -> None:
        """Wait, at the pace of the world; for longer if the process stands still."""
        await self._clock.sleep(seconds * self._world.pace)

    def now(self) -> float:
        return self._world.loop.time()

    def say(self, what: str, **fields: Any) -> None:
        self._history.append({"at": self.now(), "who": self.who, "what": what, **fields})

    def begin(self, what: str, **fields: Any) -> str:
        op = f"{self.who}.{next(self._ops)}"
        self.say(what, op=op, **fields)
        return op


class Program(Protocol):
    """Something that a client does until all is over."""

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Do it."""


class Producer:
    """Puts so many messages: one and many, at once and delayed, with and without keys."""

    def __init__(
        self, world: World, queue: AsyncQueue, log: Log, count: int, client: str = ""
    ) -> None:
        self._world = world
        self._queue = queue
        self._log = log
        self._count = count
        self._client = client
        self._draws = Draws(world.seed, log.who)
        settings = queue.settings
        self._shares = settings.dedup_window_s is not None
        self._shared_s = Draws(world.seed, "shared keys").choice(SHARED_S)
        self._far_share = 0.1 if settings.schedule_period_s == 60 else 0.0
        self._regrets = Draws(world.seed, f"regrets of {log.who}")
        self._regret_share = self._regrets.choice([0.0] * 5 + [0.5])

    async def work(self, is_over: Callable[[], bool]) -> None:
        del is_over  # it ends with its last message
        draws, done = self._draws, 0
        while done < self._count:
            many = draws.randint(1, 8) if draws.random() < 0.5 else 1
            keys = [f"{self._log.who}.{done + at}" for at in range(many)]
            done += many
            if many == 1 and self._regrets.random() < self._regret_share:
                ids = await self._put(keys, chooses_ids=False)
                await self._log.sleep(self._regrets.choice([0.1, 1.0, 3.0]))
                await self._cancel(ids, keys)
            elif self._shares and draws.random() < 0.3:
                await self._put_shared(many)
            elif draws.random() < self._far_share:
                await self._put_far(keys)
            else:
                delay = draws.choice((1, 2, 30, 90)) if draws.random() < 0.1 else 0
                ttl = draws.choice((1, 5, 20)) if draws.random() < 0.1 else None
                await self._put(keys, delay=delay, ttl=ttl)
            await self._log.sleep(draws.choice([0.0, 0.01, 0.1, 0.5]))

    async def _put_shared(self, many: int) -> None:
        """Put keys that others put at the same time."""
        keys = [f"shared.{self._log.now() // self._shared_s:.0f}.{at}" for at in range(many)]
        await self._put(keys, dedup_keys=keys)

    async def _put_far(self, keys: list[str]) -> None:
        """Put into a due lane; a third of those that are alone are cancelled."""
        is_cancelled = len(keys) == 1 and self._draws.random() < 1 / 3
        # A chosen id is not indexed.
        ids = await self._put(keys, delay=FAR_S, far=True, chooses_ids=not is_cancelled)
        if is_cancelled:
            await self._cancel(ids, keys)

    async def _cancel(self, ids: list[str], keys: list[str]) -> None:
        if not ids:
            return
        op = self._log.begin("cancels", key=keys[0])
        try:
            done = await self._queue.cancel(ids[0])
        except CassieqError as error:
            self._log.say("failed", error=str(error))
        else:
            self._log.say("cancelled", op=op, key=keys[0], done=done)

    async def _put(
        self,
        keys: list[str],
        *,
        delay: int = 0,
        ttl: int | None = None,
        far: bool = False,
        chooses_ids: bool = True,
        dedup_keys: list[str] | None = None,
    ) -> list[str]:
        """Put; return the ids that are known."""
        draws, log, queue = self._draws, self._log, self._queue
        ids = [str(self._id()) for _ in keys]
        where: dict[str, Any] = {
            "priority": draws.randrange(queue.settings.priorities),
            "key": draws.choice((None, "a", "b", "c")),
        }
        shared = dedup_keys is not None
        kept_s = queue.settings.retention_s
        about = {"delay": delay, "ttl": ttl, "shared": shared, "far": far, "kept": kept_s}
        op = log.begin("puts", keys=keys, **about)
        unanswered = self._world.unanswered[self._client]
        bodies = [key.encode() for key in keys]
        times: dict[str, Any] = {"delay": delay, "ttl": ttl}
        try:
            if len(keys) == 1 and not shared:
                chosen = ids[0] if chooses_ids else None
                done = [await queue.put(bodies[0], message_id=chosen, **times, **where)]
            else:
                if draws.random() < 0.3:  # one call for several lanes
                    priorities = queue.settings.priorities
                    where["priority"] = [draws.randrange(priorities) for _ in keys]
                done = await queue.put_many(
                    bodies, message_ids=ids, dedup_keys=dedup_keys, **times, **where
                )
        except PutAmbiguous as error:
            known = dict(zip(ids, keys, strict=True))
            stored = [known[one] for one in error.stored if one in known]
            unknown = [known[one] for one in error.message_ids if one in known]
            if not chooses_ids:
                stored, unknown = [], keys
            answered = unanswered == self._world.unanswered[self._client]
            log.say("put", op=op, stored=stored, unknown=unknown, answered=answered)
            log.say("failed", error=str(error))
            return []
        except CassieqError as error:
            log.say("put", op=op, stored=[], unknown=[])
            log.say("failed", error=str(error))
            return []
        log.say("put", op=op, stored=keys, unknown=[])
        return [str(one) for one in done]

    def _id(self) -> UUID:
        return UUID(int=self._draws.getrandbits(128), version=4)


class Consumer:
    """Gets until it is told to end; acks, extends, updates, gives back, rejects and forgets."""

    def __init__(
        self,
        world: World,
        queue: AsyncQueue,
        log: Log,
    ) -> None:
        self._world = world
        self._queue = queue
        self._log = log
        self._draws = Draws(world.seed, log.who)
        self._holds_s = (2.0, 5.0, 15.0) if world.pace == 1 else (5.0, 20.0, 70.0)

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                await self.round()
            except CassieqError as error:
                self._log.say("failed", error=str(error))
            await self._log.sleep(self._draws.choice([0.0, 0.2, 0.8]))

    async def round(self) -> None:
        draws = self._draws
        hold_s = draws.choice(self._holds_s)
        messages = await self.get(draws.choice([1, 5, 20, 60]), hold_s, draws.choice([0, 0.2, 3]))
        if draws.random() < 0.3:
            await self._log.sleep(draws.random() * hold_s * 1.2 / self._world.pace)
        weights = dict(FATES)
        if self._queue.settings.dead_letter_queue is None:
            weights.pop("reject")
        fates: dict[str, list[Delivery]] = {}
        for one in messages:
            fate = draws.choices(list(weights), list(weights.values()))[0]
            fates.setdefault(fate, []).append(one)
        for one in fates.get("extend", []):
            await self._extend(one, draws.choice(self._holds_s))
        updated = []
        for one in fates.get("update", []):
            try:
                new = await self._queue.update(one, body=one.body + AGAIN)
            except ReceiptExpired:
                continue
            times = new.body.count(AGAIN)
            self._log.say("updated", queue=self._queue.name, named=named([new]), again=times)
            if draws.random() < 0.7:
                updated.append(new)
        await self.ack([*fates.get("ack", []), *fates.get("extend", []), *updated])
        await self._give(self._queue.release, fates.get("release", []))
        await self._give(partial(self._queue.release, delay=1), fates.get("delay", []))
        await self._give(self._queue.reject, fates.get("reject", []))

    async def get(self, at_most: int, hold_s: float, wait_s: float) -> list[Delivery]:
        begun = self._log.now()
        messages = await self._queue.get(
            at_most, visibility_timeout=hold_s, wait=wait_s, consumer=self._log.who
        )
        name = self._queue.name
        if messages:
            self._log.say("got", begun=begun, queue=name, hold=hold_s, **self._about(messages))
        else:
            self._log.say("nothing", begun=begun, queue=name)
        return messages

    def _about(self, messages: list[Delivery]) -> dict[str, Any]:
        """Describe what was got: also for how many seconds of true time the first lease lasts."""
        first = min(one.visible_until for one in messages)
        last = max(one.visible_until for one in messages)
        return {
            "named": named(messages),
            "again": [one.body.count(AGAIN) for one in messages],
            "priorities": sorted({one.priority for one in messages}),
            "left": round((first - time_of(START_US)).total_seconds() - self._log.now(), 3),
            "most": round((last - time_of(START_US)).total_seconds() - self._log.now(), 3),
        }

    async def ack(self, messages: list[Delivery]) -> None:
        if messages:
            op = self._begin("acks", messages)
            verdicts = [verdict.value for verdict in await self._queue.ack_each(messages)]
            if self._world.seen["tag evicted"] or self._world.seen["bucket dropped"]:
                # If its own CAS was not answered, and its tag is gone, alone or with the row, then
                # it has found the effects [R8].
                verdicts = ["unknown" if one == "already_acked" else one for one in verdicts]
            self._log.say("acked", op=op, verdicts=verdicts)

    async def _extend(self, one: Delivery, hold_s: float) -> None:
        op = self._begin("extends", [one], hold=hold_s)
        try:
            await self._queue.extend(one, hold_s)
        except ReceiptExpired:
            return
        self._log.say("extended", op=op)

    async def _give(self, act: Callable[..., Awaitable[object]], messages: list[Delivery]) -> None:
        if messages:
            self._log.say("gives", queue=self._queue.name, named=named(messages))
            try:
                await act(messages)
            except ReceiptExpired:
                return

    def _begin(self, what: str, messages: list[Delivery], **fields: float) -> str:
        return self._log.begin(what, queue=self._queue.name, named=named(messages), **fields)


class Redriver:
    """Sends dead letters back until it is told to end."""

    def __init__(self, world: World, client: AsyncClient, queue: str, log: Log) -> None:
        self._client = client
        self._queue = queue
        self._log = log
        self._draws = Draws(world.seed, log.who)

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._log.sleep(self._draws.choice([2, 8]))
            self._log.say("redrives")
            try:
                await self._client.redrive(self._queue)
            except CassieqError as error:
                self._log.say("failed", error=str(error))


def settings_of_lives(world: World) -> dict[str, int]:
    """Draw the settings that a world gives to each queue that it creates again."""
    draws = Draws(world.seed, "settings of lives")
    return {"bucket_size": 4, "priorities": draws.choice([1, 2]), "shards": draws.choice([1, 2])}


class Recreator:
    """Creates, uses and deletes one queue, beside others who do the same.

    Raises:
        AssertionError: A queue held a message of an earlier queue of its name [T6].
    """

    def __init__(self, world: World, client: AsyncClient, name: str, log: Log) -> None:
        self._client = client
        self._name = name
        self._log = log
        self._draws = Draws(world.seed, log.who)
        self._settings = settings_of_lives(world)
        self._puts = 0
        self._purged = 0

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                await self._live(is_over)
            except CassieqError as error:
                self._log.say("failed", error=str(error))
            await self._log.sleep(self._draws.choice([0.1, 1.0]))

    async def _live(self, is_over: Callable[[], bool]) -> None:
        draws = self._draws
        queue, _ = await self._client.find_or_create_queue(self._name, **self._settings)
        life, mine = f"{queue.created_at}".encode(), self._log.who.encode()
        self._log.say("life", life=life)
        while not is_over():
            begun = self._log.now()
            match draws.choice(["put", "put", "put", "get", "get", "get", "purge", "delete"]):
                case "put":
                    self._puts += 1
                    body = b"|".join((life, mine, str(self._puts).encode()))
                    await queue.put_many([body] * draws.randint(1, 6))
                    self._log.say("lived", life=life, begun=begun)
                case "get":
                    messages = await queue.get(
                        10, visibility_timeout=2, wait=0.2, consumer=self._log.who
                    )
                    for found in [one.body.split(b"|") for one in messages]:
                        assert found[0] == life, f"in the queue of {life!r} are {found}"
                        assert found[1] != mine or int(found[2]) > self._purged, (
                            f"{found} was purged"
                        )
                        self._log.say("lived", life=life, begun=begun)
                    await queue.ack(messages)
                case "purge":
                    before = self._puts
                    await queue.purge()
                    self._purged = before
                case "delete":
                    self._log.say("life ends", life=life)
                    await queue.delete(force=True)
                    self._log.say("life ended", life=life)
            await self._log.sleep(draws.choice([0.05, 0.5]))


class Pauser:
    """Pauses the queue, or one priority of it, and resumes it, until it is told to end."""

    def __init__(self, world: World, queue: AsyncQueue, log: Log) -> None:
        self._queue = queue
        self._log = log
        self._draws = Draws(world.seed, log.who)

    async def work(self, is_over: Callable[[], bool]) -> None:
        draws, queue = self._draws, self._queue
        while not is_over():
            await self._log.sleep(draws.choice([0.2, 1.0, 3.0]))
            priority = draws.choice([None, *range(queue.settings.priorities)])
            priorities = [*range(queue.settings.priorities)] if priority is None else [priority]
            try:
                op = self._log.begin("pauses", priorities=priorities)
                await queue.pause(priority)
                self._log.say("paused", op=op)
                await self._log.sleep(draws.choice([0.1, 1.0, 4.0]))
                op = self._log.begin("resumes", priorities=priorities)
                await queue.resume(priority)
                self._log.say("resumed", op=op)
            except CassieqError as error:
                self._log.say("failed", error=str(error))


class Repairer:
    """Runs repair passes until it is told to end."""

    def __init__(self, world: World, client: AsyncClient, log: Log) -> None:
        self._client = client
        self._log = log
        self._draws = Draws(world.seed, log.who)

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._log.sleep(self._draws.choice([1, 4, 10]))
            try:
                await self._client.repair(full=self._draws.random() < 0.2)
            except CassieqError as error:
                self._log.say("failed", error=str(error))
