"""Processes that put, drain or wait: started once, then told what to do as often as one likes."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.queue.reserve import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

IDLE_S = 0.5
"""A consumer that has had nothing for so long is done; it is not counted as work."""


@dataclass(slots=True)
class Done:
    """What one process did, or all together.

    Attributes:
        began_s, ended_s: Of the machine's monotonic clock: the start, and the last put or ack.
        ids: One number for each message that was got, the same for the same lane and id.
        redelivered: Messages that came with a delivery count above 1.
        cpu_s: CPU time of the processes.
    """

    began_s: float
    ended_s: float
    ids: array[int] = field(default_factory=lambda: array("q"))
    redelivered: int = 0
    statements: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        """From the first start to the last put or ack."""
        return self.ended_s - self.began_s

    def merge(self, other: Done) -> None:
        """Another process's part."""
        self.began_s = min(self.began_s, other.began_s)
        self.ended_s = max(self.ended_s, other.ended_s)
        self.ids += other.ids
        self.redelivered += other.redelivered
        self.statements += other.statements
        self.cpu_s += other.cpu_s

    def note(self, message: cassieq.Message) -> None:
        """Count one message that was got."""
        self.ids.append((message.lane.int + message.id) % (1 << 62))
        self.redelivered += message.delivery_count > 1


class Fleet:
    """So many processes, each with a client of its own. A context manager."""

    def __init__(self, size: int, *, contact_points: str, keyspace: str) -> None:
        # Spawned from a clean process: no client survives a fork.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.fleet"])
        self._ends: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, contact_points, keyspace), daemon=True
            )
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def drain(self, queue: str, **how: Any) -> Done:
        """All of them together; ``how``: see `_drain`."""
        return self.run([{"work": "drain", "queue": queue, **how}] * len(self._ends))

    def run(self, asked: Sequence[dict[str, Any]]) -> Done:
        """The first processes together, each its own: ``work``, ``queue``, and what that takes."""
        ends = self._ends[: len(asked)]
        for end, one in zip(ends, asked, strict=True):
            end.send(one)
        first, *others = (end.recv() for end in ends)
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


def _work(end: Connection, contact_points: str, keyspace: str) -> None:
    with cassieq.connect(contact_points, keyspace=keyspace) as client:
        end.send("ready")
        while (asked := end.recv()) is not None:
            work = _WORK[asked.pop("work")]
            queue = client.queue(asked.pop("queue"))
            before, cpu_s = Counter(metrics.STATEMENTS.values), time.process_time()
            done = work(queue, **asked)
            done.statements = Counter(metrics.STATEMENTS.values) - before
            done.cpu_s = time.process_time() - cpu_s
            end.send(done)


def _put(queue: cassieq.Queue, *, messages: int, at_once: int, size: int, seed: int) -> Done:
    """Put so many messages of ``size`` random bytes, ``at_once`` together."""
    chance = generator(seed)
    bodies = [chance.randbytes(size) for _ in range(at_once)]
    now = SystemClock().monotonic
    done = Done(now(), now())
    for _ in range(messages // at_once):
        queue.put_many(bodies)
    done.ended_s = now()
    return done


def _drain(
    queue: cassieq.Queue, *, prefetch: int, one_by_one: bool = False, idle_s: float = IDLE_S
) -> Done:
    """By a loop of gets and acks of ``prefetch`` messages, or by a `Consumer` with that."""
    now = SystemClock().monotonic
    done = Done(now(), now())
    if one_by_one:
        with queue.consumer(prefetch=prefetch, idle_timeout=idle_s) as consumer:
            for message in consumer:
                done.note(message)
                consumer.ack(message)
                done.ended_s = now()
        return done
    while messages := queue.get(prefetch, wait=idle_s):
        queue.ack(messages)
        done.ended_s = now()
        for one in messages:
            done.note(one)
    return done


def _wait(queue: cassieq.Queue, *, seconds: float) -> Done:
    """Wait for the messages of an idle queue, in long polls."""
    now = SystemClock().monotonic
    done = Done(now(), now())
    while (left_s := done.began_s + seconds - now()) > 0:
        for message in queue.get(wait=left_s):
            done.note(message)
    done.ended_s = now()
    return done


def _cycle(queue: cassieq.Queue, *, calls: int, at_once: int, size: int, seed: int) -> Done:
    """Put, get and ack ``at_once`` messages, so many times."""
    chance = generator(seed)
    bodies = [chance.randbytes(size) for _ in range(at_once)]
    now = SystemClock().monotonic
    done = Done(now(), now())
    for _ in range(calls):
        queue.put_many(bodies)
        messages = queue.get(at_once, wait=IDLE_S)
        queue.ack(messages)
        for one in messages:
            done.note(one)
    done.ended_s = now()
    return done


def _reserve(queue: cassieq.Queue, *, calls: int) -> Done:
    """Reserve a bucket, so many times, and put nothing."""
    lane = queue._lane  # noqa: SLF001 - below the API: what a put does now and then
    now = SystemClock().monotonic
    done = Done(now(), now())
    for _ in range(calls):
        reserve(lane, 1)
    done.ended_s = now()
    return done


_WORK: dict[str, Callable[..., Done]] = {
    "put": _put,
    "drain": _drain,
    "wait": _wait,
    "cycle": _cycle,
    "reserve": _reserve,
}
