"""Processes of one release that put, get and ack: `bench.releases` starts this file and tells them.

The release is the one that is found on PYTHONPATH, an earlier one, too. So this uses only what
users have, the counters of `cassieq_spark.metrics` and the list of statements, and nothing of
``bench``. The first process imports the package once; the others are forked from what it has.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
import cassieq_spark.aio.client
import cassieq_spark.client
from cassieq_spark import metrics
from cassieq_spark.store.statements import Kind, every_statement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

    Start = Callable[[], float]
    """Says that all is prepared, waits until all others are, and returns the time."""

    WithQueue = Callable[[Any], Awaitable[dict[str, Any]]]

READY, GO = "ready", "go"
CASES = {one.name for one in every_statement() if one.kind is Kind.CAS}
READS = {one.name for one in every_statement() if one.kind not in {Kind.CAS, Kind.WRITE}}


@dataclass(frozen=True, slots=True)
class Here:
    """The client of this process, and what an asyncio one needs to connect beside it."""

    client: Any
    contact_points: str
    keyspace: str

    def awaiting(self, queue: str, work: WithQueue) -> dict[str, Any]:
        """Run a coroutine with a queue of a new asyncio client."""

        async def run() -> dict[str, Any]:
            async with cassieq.connect_async(self.contact_points, keyspace=self.keyspace) as client:
                return await work(await client.queue(queue))

        return asyncio.run(run())


def main() -> None:
    """Start the processes; a line of JSON on stdin is a work for each, and one on stdout its end.

    Arguments: contact points, keyspace, number of processes.
    """
    contact_points, keyspace, size = sys.argv[1:]
    context = multiprocessing.get_context("forkserver")
    ends = []
    for _ in range(int(size)):
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs, contact_points, keyspace), daemon=True).start()
        ends.append(ours)
    for end in ends:
        end.recv()
    print(json.dumps({"file": cassieq.__file__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_together(ends, json.loads(line))), flush=True)
    for end in ends:
        end.send(None)


def _together(ends: list[Connection], asked: list[dict[str, Any]]) -> dict[str, Any]:
    """The first processes each do their work; all begin when all are prepared."""
    ends = ends[: len(asked)]
    for end, one in zip(ends, asked, strict=True):
        end.send(one)
    said = [end.recv() for end in ends]
    ready = [end for end, one in zip(ends, said, strict=True) if one == READY]
    for end in ready:
        end.send(GO)
    said = [one for one in said if one != READY] + [end.recv() for end in ready]
    failed = [one["error"] for one in said if "error" in one]
    if failed:
        return {"error": failed[0]}
    ids = [at for one in said for at in one.pop("ids", ())]
    found: dict[str, Any] = {"messages": len(ids), "unique": len(set(ids))}
    for one in said:
        for key, value in one.items():
            match value:
                case dict():
                    found.setdefault(key, {}).update(value)
                case list():
                    found.setdefault(key, []).extend(value)
                case _ if key == "began_s":
                    found[key] = min(value, found.get(key, value))
                case _ if key == "ended_s":
                    found[key] = max(value, found.get(key, value))
                case _:
                    found[key] = found.get(key, 0) + value
    return found


def _work(end: Connection, contact_points: str, keyspace: str) -> None:
    def start() -> float:
        end.send(READY)
        end.recv()
        return monotonic()

    with cassieq.connect(contact_points, keyspace=keyspace) as client:
        here = Here(client, contact_points, keyspace)
        end.send(READY)
        while (asked := end.recv()) is not None:
            work = _WORK[asked.pop("work")]
            before = _counted()
            try:
                found = work(here, start, **asked)
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                end.send({"error": f"{type(error).__name__}: {error}"})
                continue
            end.send({key: n - before[key] for key, n in _counted().items()} | found)


def _counted() -> dict[str, float]:
    """What this process has sent so far, and its CPU time."""
    sent = Counter(metrics.STATEMENTS.values)
    return {
        "cas": sum(sent[name] for name in CASES),
        "cas_on_buckets": sum(sent[name] for name in CASES if "bucket" in name),
        "applied": metrics.CAS_APPLIED.value,
        "refused": metrics.CAS_REFUSED.value,
        "reads": sum(sent[name] for name in READS),
        "statements": sum(sent.values()),
        "cpu_s": time.process_time(),
    }


def _id(message: Any) -> int:
    """The same number for the same message."""
    return int((message.lane.int + message.id) % (1 << 62))


def _bootstrap(here: Here, start: Start) -> dict[str, Any]:
    start()
    here.client.bootstrap()
    return {}


def _create(here: Here, start: Start, *, queue: str, **settings: Any) -> dict[str, Any]:
    start()
    here.client.create_queue(queue, **settings)
    return {}


def _fill(
    here: Here, start: Start, *, queue: str, messages: int, size: int, at_once: int
) -> dict[str, Any]:
    opened, body = here.client.queue(queue), b"x" * size
    start()
    for _ in range(messages // at_once):
        opened.put_many([body] * at_once)
    return {}


def _delete(here: Here, start: Start, *, queue: str) -> dict[str, Any]:
    opened = here.client.queue(queue)
    start()
    opened.delete()
    return {}


def _drain(here: Here, start: Start, *, queue: str, at_once: int, by: str) -> dict[str, Any]:
    """Get and ack until nothing is visible: by hand, or by a `Consumer`, which claims as many."""
    opened = here.client.queue(queue)
    opened.stats()  # reads what each client of a queue reads once
    ids: list[int] = []
    began = ended = start()
    if by == "hand":
        while messages := opened.get(at_once):
            opened.ack(messages)
            ended = monotonic()
            ids += map(_id, messages)
    else:
        # A consumer claims half of its prefetch at a time.
        with opened.consumer(prefetch=2 * at_once, idle_timeout=0.5) as consumer:
            for message in consumer:
                ids.append(_id(message))
                consumer.ack(message)
                ended = monotonic()
    return {"ids": ids, "began_s": began, "ended_s": ended}


def _drip(
    here: Here, start: Start, *, queue: str, samples: int, seed: int, pause_s: tuple[float, float]
) -> dict[str, Any]:
    """Put one message after the other, with pauses; ``put_at`` is when each put began."""
    opened, chance = here.client.queue(queue), random.Random(seed)  # noqa: S311 - pauses
    at = {}
    start()
    for number in range(samples):
        time.sleep(chance.uniform(*pause_s))  # noqa: TID251 - no release's clock
        at[str(number)] = monotonic()
        opened.put(str(number).encode())
    return {"put_at": at}


def _catch(here: Here, start: Start, *, queue: str, samples: int, wait: float) -> dict[str, Any]:
    """Wait for one message after the other; ``got_at`` is when each get returned."""
    opened, ids, at = here.client.queue(queue), [], {}
    start()
    while len(ids) < samples and (messages := opened.get(1, wait=wait)):
        now = monotonic()
        for one in messages:
            at[one.body.decode()] = now
            ids.append(_id(one))
        opened.ack(messages)
    return {"ids": ids, "got_at": at}


def _fifty(
    here: Here, start: Start, *, queue: str, coroutines: int, messages: int
) -> dict[str, Any]:
    """Some coroutines put one by one, as many get and ack one at a time."""
    ids: list[int] = []
    put_at: dict[str, float] = {}
    got_at: dict[str, float] = {}
    acked_at: list[float] = []

    async def put(opened: Any, first: int) -> None:
        for number in range(first, messages, coroutines):
            put_at[str(number)] = monotonic()
            await opened.put(str(number).encode())

    async def get(opened: Any) -> None:
        while len(ids) < messages:
            got = await opened.get(1, wait=1)
            now = monotonic()
            for one in got:
                got_at[one.body.decode()] = now
                ids.append(_id(one))
            if got:
                await opened.ack(got)
                acked_at.append(monotonic())

    async def both(opened: Any) -> dict[str, Any]:
        began = start()
        putting = [put(opened, first) for first in range(coroutines)]
        await asyncio.gather(*putting, *(get(opened) for _ in range(coroutines)))
        return {"began_s": began, "ended_s": max(acked_at)}

    return here.awaiting(queue, both) | {"ids": ids, "put_at": put_at, "got_at": got_at}


def _puts(here: Here, start: Start, *, queue: str, coroutines: int, times: int) -> dict[str, Any]:
    """Coroutines put one message each, all at once; then again."""

    async def put(opened: Any) -> dict[str, Any]:
        await opened.put(b"this client has a bucket open now")
        began = start()
        for _ in range(times):
            await asyncio.gather(*(opened.put(b"x" * 96) for _ in range(coroutines)))
        return {"began_s": began, "ended_s": monotonic(), "puts": coroutines * times}

    return here.awaiting(queue, put)


def _poll(
    here: Here, start: Start, *, queue: str, polls: int, settle_s: float, watch_s: float
) -> dict[str, Any]:
    """Many wait at an empty queue: threads, reads a second, CPU."""

    async def poll(opened: Any) -> dict[str, Any]:
        wait_s = settle_s + watch_s + 10
        waiting = [asyncio.create_task(opened.get(1, wait=wait_s)) for _ in range(polls)]
        await asyncio.sleep(settle_s)
        start()
        before, began = _counted(), monotonic()
        await asyncio.sleep(watch_s)
        after, took_s = _counted(), monotonic() - began
        threads = threading.active_count()
        for one in waiting:
            one.cancel()
        for one in waiting:
            with suppress(asyncio.CancelledError):
                await one
        return {
            "threads": threads,
            "reads_per_s": (after["reads"] - before["reads"]) / took_s,
            "cpu": (after["cpu_s"] - before["cpu_s"]) / took_s,
        }

    return here.awaiting(queue, poll)


_WORK: dict[str, Callable[..., dict[str, Any]]] = {
    "bootstrap": _bootstrap,
    "create": _create,
    "fill": _fill,
    "delete": _delete,
    "drain": _drain,
    "drip": _drip,
    "catch": _catch,
    "fifty": _fifty,
    "puts": _puts,
    "poll": _poll,
}


if __name__ == "__main__":
    main()
