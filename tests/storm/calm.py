"""After a storm: everything is drained and repaired, and the tables are looked through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreError
from cassieq_spark.queue.schedule import begun_and_later
from cassieq_spark.repair.verify import verify
from cassieq_spark.store import portal
from cassieq_spark.testing import ManualClock
from tests.children.consumer import Consumer, key_of
from tests.children.producer import FAR_S
from tests.storm.checker import Anomaly

if TYPE_CHECKING:
    from pathlib import Path

    import cassieq_spark as cassieq
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.queue.lane import Lane
    from tests.storm.history import Recorder

AHEAD_S: Final = 7_200.0
"""Due lanes of a storm are over then, and repair may finish them."""

PASSES: Final = 10

LONGEST_S: Final = 90.0
"""Leases, short delays and silent transactions of a storm are over after a few seconds."""

FAR_OVER_S: Final = FAR_S + 30.0
"""Far rows of a batch that was run again late wait in ordinary lanes for their time."""

CALM: Final = 40
CALM_AT_ONCE: Final = 7
"""Messages that are put with nothing else going on, and got at a time."""

HOLD_S: Final = 5.0
AT_ONCE: Final = 500
UNDECIDED: Final = frozenset({"sealing", "writing", "prepared"})


def drain(
    client: cassieq.Client, queues: list[str], record: Recorder, *, longest_s: float = LONGEST_S
) -> list[Anomaly]:
    """Take all there is, and repair, until nothing is left and nothing is half done."""
    clock = SystemClock()
    until_s = clock.monotonic() + longest_s
    consumers = [Consumer(client.queue(name), record) for name in queues]
    rests: dict[str, str] = {}
    while clock.monotonic() < until_s:
        try:
            for consumer in consumers:
                while messages := consumer.get(AT_ONCE, HOLD_S, 0.0):
                    consumer.ack(messages)
            rests = _rests(client, queues)
        except StoreError as error:
            record.say("failed", error=str(error))
            continue
        if not rests:
            return []
        clock.wait(0.1)
    return [
        Anomaly(kind="stuck", what=f"{name} is not empty after {longest_s:g} s: {rest}")
        for name, rest in rests.items()
    ]


def drain_scheduled(client: cassieq.Client, queues: list[str], record: Recorder) -> list[Anomaly]:
    """Take what waits in due lanes, by a clock that is ahead, until no lane is left of them."""
    clock = client._store.clock
    ahead = client._store.clock = ManualClock(clock)
    try:
        ahead.advance(AHEAD_S)
        found = drain(client, queues, record)
        left: list[str] = []
        for _ in range(PASSES):
            left = [name for name in queues if _has_due_lanes(client.queue(name)._lane)]
            if not left:
                return found
            for name in left:
                client.repair(name)
            ahead.advance(60)
    except StoreError as error:
        return [Anomaly(kind="stuck", what=f"what was scheduled: {error}")]
    finally:
        client._store.clock = clock
    return [*found, Anomaly(kind="stuck", what=f"due lanes are never finished: {left}")]


def highest_first(queue: cassieq.Queue, record: Recorder) -> list[Anomaly]:
    """Put into an empty queue, in any order of classes, and note in which order it comes out.

    A get leaves a bucket alone for `linger`, so nothing is got before that. Where low classes have
    a share, no order is promised.
    """
    if queue.settings.priorities > 1 and queue.settings.fairness > 0:
        return []
    keys = {f"calm.{at}": at * 7 % 5 % queue.settings.priorities for at in range(CALM)}
    clock = SystemClock()
    op = record.begin("puts", keys=list(keys), delay=0, ttl=None, shared=False, far=False)
    got: list[str] = []
    consumer = Consumer(queue, record)
    try:
        for key, priority in keys.items():
            queue.put(key.encode(), priority=priority)
        record.say("put", op=op, stored=list(keys), unknown=[])
        clock.wait(1.0)
        while messages := consumer.get(CALM_AT_ONCE, LONGEST_S, 0.0):
            got += [key_of(message.body) for message in messages]
            consumer.ack(messages)
    except StoreError as error:
        return [Anomaly(kind="stuck", what=f"with nothing else going on: {error}")]
    record.say("calm", classes=keys, got=got)
    return []


def _has_due_lanes(lane: Lane) -> bool:
    begun, later = portal.run(begun_and_later(lane))
    return bool(begun or later)


def _rests(client: cassieq.Client, queues: list[str]) -> dict[str, str]:
    """What is left of each queue; a pass may move the dead into one that was empty."""
    found: dict[str, str] = {}
    for name in queues:
        report = client.repair(name)
        moved = sum(one.moved_dead + one.marked_dead for one in report.queues)
        problems = [problem for one in report.queues for problem in one.problems]
        stats = client.queue(name).stats()
        if moved or problems or not is_done(stats):
            found[name] = f"{stats}, moved {moved}, problems {problems}"
    return found


def is_done(stats: QueueStats) -> bool:
    """No message, and no bucket that somebody has yet to decide about."""
    messages = stats.visible + stats.in_flight + stats.delayed + stats.dead
    return messages == 0 and not UNDECIDED & {
        name for name, number in stats.buckets.items() if number
    }


def look_through(client: cassieq.Client, queues: list[str]) -> list[Anomaly]:
    """What ``cassieq verify`` finds in the tables."""
    lanes = [client.queue(name)._lane for name in queues]
    verdict = portal.run(verify(client._store, lanes))
    return [
        Anomaly(kind="tables", what=f"{one.queue} bucket {one.bucket}: {one.kind}: {one.what}")
        for one in verdict.findings
    ] + [Anomaly(kind="tables", what=f"not looked at: {what}") for what in verdict.problems]


def committed_batches(checkpoint: Path) -> list[int]:
    """The batches of Spark's commit log."""
    return sorted(int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdigit())
