"""Processes that put, drain or wait: started once, then told what to do as often as one likes.

They work on a queue of ours or of a peer (``bench/peers``): whatever has clients that are context
managers, and queues with ``put_many``, ``get`` and ``ack``.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Self

from bench.bodies import Bodies
from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

    Opener = Callable[[], AbstractContextManager[Any]]
    Start = Callable[[], float]
    """Says that all is prepared, waits until all others are, and returns the time."""

IDLE_S = 0.5
"""A consumer that has had nothing for so long is done; it is not counted as work."""

READY, GO = "ready", "go"
OURS = "ours"


class WorkFailed(Exception):
    """A process could not do what it was asked; the message is what its client said."""


@dataclass(slots=True)
class Done:
    """What one process did, or all together.

    Attributes:
        began_s, ended_s: Of the machine's monotonic clock: the start, and the last put or ack.
        put: The numbers of messages that were put.
        ids: One number for each message that was got: that of its body (`Bodies`), or else one
            that is the same for the same lane and id.
        redelivered: Messages that came with a delivery count above 1.
        cpu_s: CPU time of the processes.
        at: Times by what happened and by message, where latency is asked for.
        samples: Seconds by operation, where the cost of each is asked for.
        each: Statements by operation, as ``samples``.
    """

    began_s: float
    ended_s: float
    put: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("q"))
    redelivered: int = 0
    statements: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    at: dict[str, dict[int, float]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    each: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """From the first start to the last put or ack."""
        return self.ended_s - self.began_s

    def merge(self, other: Done) -> None:
        """Another process's part."""
        self.began_s = min(self.began_s, other.began_s)
        self.ended_s = max(self.ended_s, other.ended_s)
        self.put += other.put
        self.ids += other.ids
        self.redelivered += other.redelivered
        self.statements += other.statements
        self.cpu_s += other.cpu_s
        self.at |= other.at
        for operation, seconds in other.samples.items():
            self.samples.setdefault(operation, []).extend(seconds)
        self.each += other.each

    def note(self, message: Any, bodies: Bodies | None = None) -> None:
        """Count one message that was got."""
        # A peer may not count deliveries: there a number that comes twice tells.
        self.redelivered += getattr(message, "delivery_count", 1) > 1
        if bodies is not None:
            self.ids.append(bodies.number(message.body))
        else:
            self.ids.append((message.lane.int + message.id) % (1 << 62))


class Fleet:
    """So many processes, each with clients of its own, by their names. A context manager.

    Args:
        openers: Each opens one client; picklable.
    """

    def __init__(self, size: int, **openers: Opener) -> None:
        # Spawned from a clean process: no client survives a fork.
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.fleet"])
        self._ends: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, openers), daemon=True)
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def drain(self, queue: str, **how: Any) -> Done:
        """All of them together; ``how``: see `_drain`."""
        return self.run([{"work": "drain", "queue": queue, **how}] * len(self._ends))

    def run(self, asked: Sequence[dict[str, Any]]) -> Done:
        """The first processes together, each its own: ``work``, ``queue``, and what that takes.

        ``client`` says whose queue it is; default: `OURS`. All begin when all are prepared.

        Raises:
            WorkFailed: One of them could not; the others have ended their work too.
        """
        ends = self._ends[: len(asked)]
        for end, one in zip(ends, asked, strict=True):
            end.send(one)
        said = [end.recv() for end in ends]
        ready = [end for end, one in zip(ends, said, strict=True) if one == READY]
        for end in ready:
            end.send(GO)
        said = [one for one in said if one != READY] + [end.recv() for end in ready]
        for one in said:
            if isinstance(one, str):
                raise WorkFailed(one)
        first, *others = said
        for one in others:
            first.merge(one)
        return first

    def __enter__(self) -> Self:
        """They are connected already."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End them."""
        for end in self._ends:
            end.send(None)
        for process in self._processes:
            process.join()


def _work(end: Connection, openers: dict[str, Opener]) -> None:
    def start() -> float:
        end.send(READY)
        end.recv()
        return SystemClock().monotonic()

    with ExitStack() as stack:
        clients = {name: stack.enter_context(opener()) for name, opener in openers.items()}
        end.send(READY)
        while (asked := end.recv()) is not None:
            client = clients[asked.pop("client", OURS)]
            try:
                end.send(_done(client, start, **asked))
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                end.send(f"{type(error).__name__}: {error}")


def _done(client: Any, start: Start, *, work: str, queue: str, **asked: Any) -> Done:
    opened = client.queue(queue)
    before, cpu_s = Counter(metrics.STATEMENTS.values), time.process_time()
    try:
        done = _WORK[work](opened, start, **asked)
    finally:
        if hasattr(opened, "close"):  # gives back what it was sent and has not handed out
            opened.close()
    done.statements = Counter(metrics.STATEMENTS.values) - before
    done.cpu_s = time.process_time() - cpu_s
    return done


def _put(
    queue: Any,
    start: Start,
    *,
    at_once: int,
    size: int,
    seed: int,
    first: int = 0,
    messages: int | None = None,
    seconds: float | None = None,
) -> Done:
    """Put the messages from ``first`` on, ``at_once`` together: so many, or for so long."""
    bodies = Bodies(size, seed)
    now = SystemClock().monotonic
    done = Done(began := start(), began)
    numbers = count(first) if messages is None else range(first, first + messages)
    left = iter(numbers)
    while seconds is None or done.ended_s - began < seconds:
        if not (some := list(islice(left, at_once))):
            break
        queue.put_many([bodies[number] for number in some])
        done.ended_s = now()
        done.put.extend(some)
    return done


def _drain(
    queue: Any,
    start: Start,
    *,
    prefetch: int,
    one_by_one: bool = False,
    idle_s: float = IDLE_S,
    bodies: tuple[int, int] | None = None,
    seconds: float | None = None,
) -> Done:
    """By a loop of gets and acks of ``prefetch`` messages, or by a `Consumer` with that.

    Args:
        bodies: Size and seed, as they were put.
        seconds: No get begins later.
    """
    known = None if bodies is None else Bodies(*bodies)
    now = SystemClock().monotonic
    done = Done(began := start(), began)
    if one_by_one:
        with queue.consumer(prefetch=prefetch, idle_timeout=idle_s) as consumer:
            for message in consumer:
                done.note(message, known)
                consumer.ack(message)
                done.ended_s = now()
        return done
    while seconds is None or done.ended_s - began < seconds:
        messages = queue.get(prefetch, wait=idle_s)
        if not messages:
            break
        queue.ack(messages)
        done.ended_s = now()
        for one in messages:
            done.note(one, known)
    return done


def _wait(queue: Any, start: Start, *, seconds: float) -> Done:
    """Wait for the messages of an idle queue, in long polls."""
    now = SystemClock().monotonic
    done = Done(began := start(), began)
    while (left_s := began + seconds - now()) > 0:
        for message in queue.get(wait=left_s):
            done.note(message)
    done.ended_s = now()
    return done


def _drip(
    queue: Any,
    start: Start,
    *,
    samples: int,
    size: int,
    seed: int,
    pause_s: tuple[float, float],
) -> Done:
    """Put one message after the other, with pauses; ``at["put"]`` is when each put began."""
    bodies, chance, clock = Bodies(size, seed), generator(seed), SystemClock()
    done = Done(began := start(), began)
    done.at["put"] = {}
    for number in range(samples):
        clock.wait(chance.uniform(*pause_s))
        done.at["put"][number] = clock.monotonic()
        queue.put_many([bodies[number]])
        done.put.append(number)
    done.ended_s = clock.monotonic()
    return done


def _catch(queue: Any, start: Start, *, samples: int, bodies: tuple[int, int], wait: float) -> Done:
    """Wait for one message after the other; ``at["got"]`` is when each get returned."""
    known, now = Bodies(*bodies), SystemClock().monotonic
    done = Done(began := start(), began)
    done.at["got"] = {}
    while len(done.ids) < samples and (messages := queue.get(1, wait=wait)):
        at = now()
        for one in messages:
            done.note(one, known)
            done.at["got"][done.ids[-1]] = at
        queue.ack(messages)
    done.ended_s = now()
    return done


def _cycle(queue: Any, start: Start, *, calls: int, at_once: int, size: int, seed: int) -> Done:
    """Put, get and ack ``at_once`` messages, so many times."""
    bodies, now = Bodies(size, seed), SystemClock().monotonic
    done = Done(began := start(), began)
    for call in range(calls):
        queue.put_many([bodies[call * at_once + at] for at in range(at_once)])
        messages = queue.get(at_once, wait=IDLE_S)
        queue.ack(messages)
        for one in messages:
            done.note(one, bodies)
    done.ended_s = now()
    return done


def _probe(
    queue: Any,
    start: Start,
    *,
    times: int,
    size: int,
    seed: int,
    first: int,
    idle: bool,
    source: dict[str, str] | None = None,
) -> Done:
    """Put one, get one, ack it, and ask an empty queue (if ``idle``), so many times.

    Args:
        source: Options of ``readStream``: a query's trigger asks the empty queue as well.
    """
    trigger = _Trigger(source | {"queue": queue.name}) if source and idle else None
    bodies, now = Bodies(size, seed), SystemClock().monotonic
    samples: dict[str, list[float]] = defaultdict(list)
    done = Done(began := start(), began)

    def timed(name: str, action: Callable[[], Any]) -> Any:
        before, at = sum(metrics.STATEMENTS.values.values()), now()
        found = action()
        done.ended_s = now()
        samples[name].append(done.ended_s - at)
        done.each[name] += sum(metrics.STATEMENTS.values.values()) - before
        return found

    for number in range(first, first + times):
        body = bodies[number]
        timed("put", lambda: queue.put_many([body]))  # noqa: B023 - called at once
        done.put.append(number)
        messages = timed("get", lambda: queue.get(1))
        timed("ack", lambda: queue.ack(messages))  # noqa: B023 - called at once
        for one in messages:
            done.note(one, bodies)
        if idle:
            timed("idle poll", lambda: queue.get(1))
        if trigger is not None:
            trigger.ask()  # it sees what came since, and has nothing to claim
            timed("idle trigger", trigger.ask)
    if trigger is not None:
        trigger.close()
    done.samples = dict(samples)
    return done


class _Trigger:
    """What Spark calls in each trigger of a streaming query, where it calls it: in one process."""

    def __init__(self, options: dict[str, str]) -> None:
        from cassieq_spark.options import parse_source  # noqa: PLC0415 - of this work alone
        from cassieq_spark.spark.source.reader import StreamReader  # noqa: PLC0415 - it needs PySpark

        self._reader = StreamReader(parse_source(options), ("body",), new_uuid())
        self._offset = self._reader.initialOffset()

    def ask(self) -> None:
        """One call of ``latestOffset``, which must find nothing."""
        limit = self._reader.getDefaultReadLimit()
        if self._reader.latestOffset(self._offset, limit) != self._offset:
            raise WorkFailed("a trigger at an empty queue has claimed something")

    def close(self) -> None:
        """Close what it has opened."""
        self._reader.stop()


def _reserve(queue: Any, start: Start, *, calls: int) -> Done:
    """Reserve a bucket, so many times, and put nothing."""
    lane, now = queue._lane, SystemClock().monotonic  # noqa: SLF001 - below the API: what a put does now and then
    done = Done(began := start(), began)
    for _ in range(calls):
        portal.run(reserve(lane, 1))
    done.ended_s = now()
    return done


_WORK: dict[str, Callable[..., Done]] = {
    "put": _put,
    "drain": _drain,
    "wait": _wait,
    "drip": _drip,
    "catch": _catch,
    "probe": _probe,
    "cycle": _cycle,
    "reserve": _reserve,
}
