"""Consumer processes: started once, then told a queue to drain as often as one likes."""

from __future__ import annotations

import multiprocessing
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

IDLE_S = 0.5
"""A consumer that has had nothing for so long is done; it is not counted as work."""


@dataclass(slots=True)
class Drained:
    """What one consumer did, or all together.

    Attributes:
        began_s, ended_s: Of the machine's monotonic clock: the start, and the last ack.
        redelivered: Messages that came with a delivery count above 1.
    """

    began_s: float
    ended_s: float
    ids: array[int] = field(default_factory=lambda: array("q"))
    redelivered: int = 0
    statements: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """From the first start to the last ack."""
        return self.ended_s - self.began_s

    def merge(self, other: Drained) -> None:
        """Another consumer's part."""
        self.began_s = min(self.began_s, other.began_s)
        self.ended_s = max(self.ended_s, other.ended_s)
        self.ids += other.ids
        self.redelivered += other.redelivered
        self.statements += other.statements


class Fleet:
    """So many consumer processes. A context manager."""

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

    def drain(self, queue: str, **how: Any) -> Drained:
        """All of them together; ``how``: see `_drain`."""
        for end in self._ends:
            end.send({"queue": queue, **how})
        first, *others = (end.recv() for end in self._ends)
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
            before = Counter(metrics.STATEMENTS.values)
            drained = _drain(client.queue(asked.pop("queue")), **asked)
            drained.statements = Counter(metrics.STATEMENTS.values) - before
            end.send(drained)


def _drain(queue: cassieq.Queue, *, prefetch: int, one_by_one: bool) -> Drained:
    """By a loop of gets and acks of ``prefetch`` messages, or by a `Consumer` with that."""
    now = SystemClock().monotonic
    done = Drained(now(), now())
    if one_by_one:
        with queue.consumer(prefetch=prefetch, idle_timeout=IDLE_S) as consumer:
            for message in consumer:
                done.ids.append(message.id)
                done.redelivered += message.delivery_count > 1
                consumer.ack(message)
                done.ended_s = now()
        return done
    while messages := queue.get(prefetch, wait=IDLE_S):
        queue.ack(messages)
        done.ended_s = now()
        done.ids.extend(one.id for one in messages)
        done.redelivered += sum(one.delivery_count > 1 for one in messages)
    return done
