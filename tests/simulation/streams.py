"""Streaming queries of a simulated world: the engine's part is ours, and Spark is an automaton.

It is Spark 4.2 as ``tests/spark/test_engine_facts`` has seen it: an offset is logged before its
batch runs, and a batch is committed after it. A run that is killed is followed by another one from
the same checkpoint, which runs the last batch again if it was not committed. A query may also be
started twice: then the older run is a zombie.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.datasource import ReadMaxRows

from cassieq_spark.errors import CassieqError
from cassieq_spark.model.ids import first_id
from cassieq_spark.model.offset import INITIAL
from cassieq_spark.model.sink_txn import AlreadyCommitted, Identity, TaskResult
from cassieq_spark.options.parse import parse_source
from cassieq_spark.queue.fetch import fetch
from cassieq_spark.queue.message import _shown
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.writer import BulkWriter
from cassieq_spark.spark.source.planner import Plan, Planner
from tests.children.consumer import key_of, place_of
from tests.simulation.actors import Log
from tests.simulation.draws import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from cassieq_spark.client import Client
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import Place
    from cassieq_spark.model.outcome import Stored
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.store import Store
    from tests.simulation.world import World, WorldTransport
    from tests.storm.history import Entry

HOLD_S: Final = 4.0
ROWS: Final = 8
"""The rows of a sink's batch."""

DELAYED_EACH: Final = 3
TASKS: Final = 2
ZOMBIES_END_WITHIN_S: Final = 300.0
ANY_LIMIT: Final = ReadMaxRows(1)
"""What Spark passes back; the limits of the options hold."""

START: Final[dict[str, Any]] = INITIAL.to_json()


class Query:
    """A streaming query with a checkpoint, and its runs.

    Attributes:
        offsets: The offset log: what each batch ends with.
        committed: How many batches the commit log has.
        dies_at_last: Whether its last run is killed in the middle of a batch.
    """

    def __init__(
        self, world: World, history: list[Entry], name: str, queue: str, bucket_size: int
    ) -> None:
        self.name = name
        self.bucket_size = bucket_size
        self.queue = queue
        self.world = world
        self.history = history
        self.draws = Draws(world.seed, name)
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.dies_at_last = self.draws.random() < 0.6
        self._starts = 0

    async def work(
        self,
        begin_client: Callable[[], Coroutine[Any, Any, tuple[Client, WorldTransport]]],
        is_over: Callable[[], bool],
    ) -> None:
        """Run the query, and start it again whenever it has ended, until all is over."""
        world = self.world
        zombies: list[asyncio.Task[None]] = []
        while not is_over():
            try:
                client, transport = await begin_client()
            except CassieqError:
                await asyncio.sleep(1)
                continue
            self._starts += 1
            run = f"00000000-0000-0000-0000-{self._starts:012d}"
            log = Log(world, self.history, f"{self.name} run {self._starts}", transport.clock)
            task = world.loop.create_task(self._run(client, run, log, is_over))
            transport.actors.append(task)
            await self._wait(task, transport, is_over)
            if task.done():
                if not task.cancelled():
                    task.result()
                world.transports_in_use.remove(transport)
            elif not transport.is_dead:
                zombies.append(task)
        if zombies:
            await asyncio.wait(zombies, timeout=ZOMBIES_END_WITHIN_S)

    async def _wait(
        self, task: asyncio.Task[None], transport: WorldTransport, is_over: Callable[[], bool]
    ) -> None:
        """Wait until a run ends, is killed, or has a run beside it."""
        world, draws = self.world, self.draws
        fate = draws.choice(["end", "end", "die", "die", "zombie"])
        if fate == "die":
            transport.dies_after = draws.choice([5, 20, 60, 200]) + draws.randrange(20)
        until = world.loop.time() + (draws.choice([0.3, 1.0, 3.0]) if fate == "zombie" else 1e9)
        while not task.done() and not transport.is_dead and not is_over():
            if world.loop.time() >= until:
                world.seen["zombie run"] += 1
                return
            await asyncio.sleep(max(0.1, world.leaps_until_s - world.loop.time()))
        if is_over() and self.dies_at_last and not transport.is_dead:
            world.seen["run killed at last"] += 1
            transport.dies_after = draws.randrange(25)
        if not transport.is_dead and not task.done():
            await asyncio.wait([task], timeout=ZOMBIES_END_WITHIN_S)

    async def _run(self, client: Client, run: str, log: Log, is_over: Callable[[], bool]) -> None:
        try:
            await self.run(client, run, log, is_over)
        except CassieqError as error:
            log.say("failed", error=str(error))

    async def run(self, client: Client, run: str, log: Log, is_over: Callable[[], bool]) -> None:
        """One run, until an error ends it."""
        raise NotImplementedError

    def commit(self, number: int) -> bool:
        """Write a batch into the commit log; return false if another run has done so."""
        if self.committed != number:
            return False
        self.committed = number + 1
        return True

    async def lane_of(self, client: Client) -> Lane:
        """Open the queue's first lane."""
        return await client._lane(self.queue)


class Source(Query):
    """Reads a queue; what is done with a batch is to write down what it was given."""

    def note_late(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write down that an ack found a lease gone, as the package logs it."""
        if event == "acks_expired":
            self.history.append(
                {
                    "at": self.world.loop.time(),
                    "who": self.name,
                    "what": "late",
                    "stream": self.name,
                    "size": self.bucket_size,
                    **{
                        name: fields[name] for name in ("queue", "lane", "bucket") if name in fields
                    },
                }
            )

    async def run(self, client: Client, run: str, log: Log, is_over: Callable[[], bool]) -> None:
        """See `Query`."""
        options = parse_source(
            {
                "contactPoints": "10.0.0.1",
                "queue": self.queue,
                "visibilityTimeout": f"{HOLD_S:g}s",
                # Nobody tells a planner that its query has failed.
                "maxBatchDuration": "20s",
                "maxMessagesPerTrigger": str(self.draws.choice([1, 5, 40])),
            }
        )
        planner = await _opened(client.store, options)
        source = SourceRun(self, planner, client, run, log)
        source.note_renewals()
        await source.work(is_over)
        await _verb(Planner.close)(planner)


class SourceRun:
    """One run of a source. It goes on from what it has logged itself."""

    def __init__(self, query: Source, planner: Planner, client: Client, run: str, log: Log) -> None:
        self._query = query
        self._planner = planner
        self._client = client
        self._run = run
        self._log = log
        self._told: set[int] = set()

    def note_renewals(self) -> None:
        """Write down which messages each renewal has extended the leases of."""
        renewal = self._planner._renewal
        extend = renewal._extended

        async def noted(place: Place, held: Any) -> Stored[Bucket] | None:
            begun, ids = self._log.now(), held.ids
            first = first_id(place.bucket, self._query.bucket_size)
            row = await extend(place, held)
            named = [
                (place_of(place.lane, first + at), one.delivery_count)
                for one in (row.value.leases if row is not None else ())
                if one.lease_id in ids and one.run == renewal._run
                for at in one.runs.offsets()
            ]
            self._log.say("renewed", begun=begun, hold=HOLD_S, queue=self._query.queue, named=named)
            return row

        renewal._extended = noted  # type: ignore[method-assign]  # as this run's own

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Run batches until another run has logged or committed one of them, or all is over."""
        query, log, planner = self._query, self._log, self._planner
        number = query.committed
        start = query.offsets[number - 1] if number else START
        if len(query.offsets) > number:
            end = query.offsets[number]
            if not await self._batch(number, start, end):
                return
            number, start = number + 1, end
        while not is_over():
            begun = log.now()
            if start != START and query.draws.random() < 0.3:
                await _verb(Planner.ack)(planner, start)  # Spark's commit, one batch late
            end = await _verb(Planner.latest)(planner, start, planner.limits(ANY_LIMIT))
            if end != start and query.draws.random() < 0.2:
                again = await _verb(Planner.latest)(planner, start, planner.limits(ANY_LIMIT))
                assert end == again, f"another answer to the same start: {end}, {again}"  # [P23]
            log.say("settled", stream=query.name, seq=start["seq"])
            if end == start:
                await log.sleep(query.draws.choice([0.1, 0.5]))
                continue
            self._leased(begun, end)
            await log.sleep(query.draws.choice([0.0, 0.05]))
            if len(query.offsets) != number:
                return
            query.offsets.append(end)
            if not await self._batch(number, start, end):
                return
            number, start = number + 1, end

    async def _batch(self, number: int, start: dict[str, Any], end: dict[str, Any]) -> bool:
        """Run a batch; return whether it was ours to commit."""
        query, log = self._query, self._log
        begun = log.now()
        about: dict[str, Any] = {"stream": query.name, "batch": number, "run": self._run}
        # A batch of two actions is planned and read twice, and has the same rows (I8).
        for _ in range(query.draws.choice([1, 1, 2])):
            plan = await _verb(Planner.plan)(self._planner, start, end)
            self._leased(begun, end)
            named = await self._read(plan)
            log.say("rows", queue=query.queue, named=named, seq=end["seq"], **about)
            await log.sleep(query.draws.choice([0.0, 0.0, 0.5, 3.0]))
        log.say("done", **about)
        await log.sleep(query.draws.choice([0.0, 0.1]))
        return query.commit(number)

    async def _read(self, plan: Plan) -> list[tuple[str, str, int]]:
        """Read the messages of a plan; return the key, place and delivery count of each."""
        named = []
        for lane, some in plan:
            async for found in fetch(self._client.store, lane.queue, lane.fixed, some):
                named += [
                    (key_of(one.body), place_of(one.lane, one.id), one.delivery_count)
                    for one in _shown(lane.sibling(found.planned.lane), found)
                ]
        return sorted(named)

    def _leased(self, begun: float, end: dict[str, Any]) -> None:
        if end["seq"] not in self._told:
            self._told.add(end["seq"])
            stream = self._query.name
            seq, run = end["seq"], self._run
            self._log.say("leased", begun=begun, stream=stream, seq=seq, hold=HOLD_S, run=run)


class Sink(Query):
    """Writes numbered rows, a batch a transaction; some of them are due later."""

    def __init__(
        self, world: World, history: list[Entry], name: str, queue: str, bucket_size: int
    ) -> None:
        super().__init__(world, history, name, queue, bucket_size)
        self._delay_s: int = self.draws.choice([5, 20, 90])

    async def run(self, client: Client, run: str, log: Log, is_over: Callable[[], bool]) -> None:
        """See `Query`."""
        lane = await self.lane_of(client)
        log.say("scheduling", sink=self.name, delay=self._delay_s, each=DELAYED_EACH)
        while not is_over():
            number = self.committed
            who = Identity(
                sink_id=self.name,
                lane=lane.first.lane_id,
                query_id=f"query of {self.name}",
                checkpoint=f"checkpoint of {self.name}",
                run=run,
            )
            results = [await self._task(lane, who, number, part) for part in range(TASKS)]
            await log.sleep(self.draws.choice([0.0, 0.0, 0.3]))
            await transaction.commit(lane, who, number, results)
            await log.sleep(self.draws.choice([0.0, 0.2]))
            if not self.commit(number):
                return
            await log.sleep(self.draws.choice([0.1, 1.0]))

    async def _task(self, lane: Lane, who: Identity, batch: int, part: int) -> TaskResult:
        """Run a task. It may have a second attempt, which may go on when its stage has ended."""
        loop = self.world.loop
        attempts = [loop.create_task(self._attempt(lane, who, batch, part))]
        if self.draws.random() < 0.3:
            self.world.seen["second attempt"] += 1
            attempts.append(loop.create_task(self._attempt(lane, who, batch, part)))
        failed: CassieqError | None = None
        while attempts:
            done, _ = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            for one in [one for one in attempts if one in done]:
                attempts.remove(one)
                error = one.exception()
                if error is None:
                    for zombie in attempts:
                        zombie.add_done_callback(_heed)
                    return one.result()
                if not isinstance(error, CassieqError):
                    raise error
                failed = error
        assert failed is not None
        raise failed

    async def _attempt(self, lane: Lane, who: Identity, batch: int, part: int) -> TaskResult:
        draws = self.draws
        admission = await transaction.admit(lane, who, batch)
        if isinstance(admission, AlreadyCommitted):
            return TaskResult(who=who, epoch=None)
        writer = BulkWriter(
            lane,
            sink_id=who.sink_id,
            epoch=admission.epoch,
            bucket_bytes=draws.choice([10, 1_000_000]),
            writes_in_flight=draws.choice([1, 8]),
        )
        numbers = range(batch * ROWS + part, (batch + 1) * ROWS, TASKS)
        rows = encode.messages([f"{self.name}:{number}".encode() for number in numbers])
        lanes = list(lane.lanes)
        async with transaction.heartbeat(lane, who.sink_id), writer:
            for at, (number, row) in enumerate(zip(numbers, rows, strict=True)):
                of_lane = writer.of(lanes[at % len(lanes)])
                (packed,) = encode.pack_into([row], capacity=of_lane.capacity)
                due_us = 0 if number % DELAYED_EACH else lane.clock.now_us() + self._delay_s * 10**6
                await of_lane.add(packed.payload, packed.count, [due_us])
            buckets = await writer.finish()
        return TaskResult(who=who, epoch=admission.epoch, buckets=buckets)

    def tell_committed(self) -> Entry:
        """Return the entry of what Spark holds for committed, at the end."""
        return {
            "at": self.world.loop.time(),
            "who": self.name,
            "what": "committed",
            "sink": self.name,
            "batches": list(range(self.committed)),
            "rows": ROWS,
        }


def _heed(zombie: asyncio.Task[Any]) -> None:
    """Take note of what became of an attempt whose stage has ended."""
    if not zombie.cancelled() and not isinstance(zombie.exception(), CassieqError | None):
        raise AssertionError(f"a zombie attempt failed: {zombie.exception()!r}")


async def _opened(store: Store, options: SourceOptions) -> Planner:
    verb: Any = Planner.open
    planner: Planner = await verb.__func__.__wrapped__(Planner, store, options)
    return planner


def _verb(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the coroutine function of a method that blocks."""
    found: Callable[..., Coroutine[Any, Any, Any]] = method.__wrapped__  # type: ignore[attr-defined]
    return found
