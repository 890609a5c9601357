"""The programs of a simulated world: they put, get and repair, and say what they did.

Their entries are those of `tests.storm.history`, in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cassieq_spark.errors import CassieqError, PutAmbiguous, ReceiptExpired
from tests.children.consumer import Pace, named
from tests.simulation.draws import Draws

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.message import Delivery
    from tests.simulation.world import World
    from tests.storm.history import Entry

FATES = Pace().fates


class Log:
    """One actor's way to write the history of a world."""

    def __init__(self, world: World, history: list[Entry], who: str) -> None:
        self._world = world
        self._history = history
        self.who = who
        self._ops = itertools.count()

    def now(self) -> float:
        return self._world.loop.time()

    def say(self, what: str, **fields: Any) -> None:
        self._history.append({"at": self.now(), "who": self.who, "what": what, **fields})

    def begin(self, what: str, **fields: Any) -> str:
        op = f"{self.who}.{next(self._ops)}"
        self.say(what, op=op, **fields)
        return op


class Producer:
    """Puts so many messages, one and many, at once and delayed."""

    def __init__(self, world: World, queues: list[AsyncQueue], log: Log, count: int) -> None:
        self._queues = queues
        self._log = log
        self._count = count
        self._draws = Draws(world.seed, log.who)

    async def work(self) -> None:
        draws, done = self._draws, 0
        while done < self._count:
            queue = draws.choice(self._queues)
            many = draws.randint(1, 8) if draws.random() < 0.5 else 1
            keys = [f"{self._log.who}.{done + at}" for at in range(many)]
            done += many
            await self._put(queue, keys)
            await asyncio.sleep(draws.choice([0.0, 0.01, 0.1, 0.5]))

    async def _put(self, queue: AsyncQueue, keys: list[str]) -> None:
        draws, log = self._draws, self._log
        delay = draws.choice((1, 2, 30)) if draws.random() < 0.1 else 0
        ttl = draws.choice((1, 5, 20)) if draws.random() < 0.1 else None
        ids = [str(self._id()) for _ in keys]
        where: dict[str, Any] = {
            "priority": draws.randrange(queue.settings.priorities),
            "key": draws.choice((None, "a", "b", "c")),
        }
        op = log.begin("puts", keys=keys, delay=delay, ttl=ttl, shared=False, far=False)
        try:
            if len(keys) == 1:
                await queue.put(keys[0].encode(), delay=delay, ttl=ttl, message_id=ids[0], **where)
            else:
                bodies = [key.encode() for key in keys]
                await queue.put_many(bodies, delay=delay, ttl=ttl, message_ids=ids, **where)
        except PutAmbiguous as error:
            known = dict(zip(ids, keys, strict=True))
            log.say(
                "put",
                op=op,
                stored=[known[one] for one in error.stored if one in known],
                unknown=[known[one] for one in error.message_ids if one in known],
            )
            log.say("failed", error=str(error))
        except CassieqError as error:
            log.say("put", op=op, stored=[], unknown=[])
            log.say("failed", error=str(error))
        else:
            log.say("put", op=op, stored=keys, unknown=[])

    def _id(self) -> UUID:
        return UUID(int=self._draws.getrandbits(128), version=4)


class Consumer:
    """Gets until it is told to end; acks, extends, updates, gives back, rejects and forgets."""

    def __init__(
        self,
        world: World,
        queue: AsyncQueue,
        log: Log,
        holds_s: tuple[float, ...] = (2.0, 5.0, 15.0),
    ) -> None:
        self._queue = queue
        self._log = log
        self._draws = Draws(world.seed, log.who)
        self._holds_s = holds_s

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                await self.round()
            except CassieqError as error:
                self._log.say("failed", error=str(error))
            await asyncio.sleep(self._draws.choice([0.0, 0.05, 0.3]))

    async def round(self) -> None:
        draws = self._draws
        hold_s = draws.choice(self._holds_s)
        messages = await self.get(draws.choice([1, 5, 20, 60]), hold_s, draws.choice([0, 0.2, 3]))
        if draws.random() < 0.3:
            await asyncio.sleep(draws.random() * hold_s * 1.2)
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
                updated.append(await self._queue.update(one, body=one.body + b"|again"))
            except ReceiptExpired:
                continue
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
            self._log.say("got", begun=begun, queue=name, hold=hold_s, named=named(messages))
        else:
            self._log.say("nothing", begun=begun, queue=name)
        return messages

    async def ack(self, messages: list[Delivery]) -> None:
        if messages:
            op = self._begin("acks", messages)
            verdicts = await self._queue.ack_each(messages)
            self._log.say("acked", op=op, verdicts=[verdict.value for verdict in verdicts])

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


class Repairer:
    """Runs repair passes until it is told to end."""

    def __init__(self, world: World, client: Any, log: Log) -> None:
        self._client = client
        self._log = log
        self._draws = Draws(world.seed, log.who)

    async def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await asyncio.sleep(self._draws.choice([1, 5, 20]))
            try:
                await self._client.repair(full=self._draws.random() < 0.2)
            except CassieqError as error:
                self._log.say("failed", error=str(error))
