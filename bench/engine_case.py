"""One case of ``bench.engine`` on one release of the package: whichever is first on PYTHONPATH.

It is a program of its own, and uses public names and metrics only: an older release runs it, too.
The last line that it prints is what it found, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import threading
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from cassieq_spark import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

KEYSPACE = "cassieq"
BODY = b"x" * 96
AT_ONCE = 100
POLLS, POLLS_FOR_S = 1_000, 10.0
Found = dict[str, float]


def cas_counts() -> dict[str, int]:
    """Return the number of CASes so far, by outcome."""
    return {
        "applied": int(metrics.CAS_APPLIED.value),
        "refused": int(metrics.CAS_REFUSED.value),
        "unknown": int(metrics.CAS_UNKNOWN.value),
    }


def costs(before: dict[str, int], messages: int) -> Found:
    """Return what a message has cost since then."""
    spent = Counter(cas_counts())
    spent.subtract(before)
    total = sum(spent.values())
    return {
        "cas_per_message": total / messages,
        "conflicts_per_cas": spent["refused"] / max(total, 1),
    }


def cycle(contact: str, name: str, messages: int) -> Found:
    """Put, get and ack one message after the other, by one thread."""
    with cassieq.connect(contact, keyspace=KEYSPACE) as client:
        queue = client.create_queue(name)
        for warm_up in (True, False):
            before, took = cas_counts(), []
            for _ in range(messages // 4 if warm_up else messages):
                began = time.perf_counter()
                queue.put(BODY)
                queue.ack(queue.get(1))
                took.append(time.perf_counter() - began)
        return {"per_s": messages / sum(took), "p50_ms": 1e3 * median(took)} | costs(
            before, messages
        )


def blocking(contact: str, name: str, messages: int) -> Found:
    """Measure the time from a put until a get that waits in another thread has the message."""
    with cassieq.connect(contact, keyspace=KEYSPACE) as client:
        queue = client.create_queue(name)
        took: list[float] = []

        def consume() -> None:
            while len(took) < messages:
                for message in queue.get(1, wait=5):
                    took.append(time.perf_counter() - float(message.body))
                    queue.ack(message)

        thread = threading.Thread(target=consume)
        thread.start()
        while thread.is_alive():
            at = len(took)
            queue.put(repr(time.perf_counter()).encode())
            while thread.is_alive() and len(took) == at:
                time.sleep(0.005)  # noqa: TID251 - a producer at leisure
        thread.join()
    return {"p50_ms": 1e3 * median(took[messages // 5 :])}


def consumer(contact: str, name: str, messages: int) -> Found:
    """Drain a backlog with one `Consumer`, and ack each message as it comes."""
    with cassieq.connect(contact, keyspace=KEYSPACE) as client:
        queue = client.create_queue(name)
        queue.put_many([BODY] * messages)
        before, began = cas_counts(), time.perf_counter()
        with queue.consumer(prefetch=2 * AT_ONCE) as messages_of:
            for _ in range(messages):
                messages_of.ack(messages_of.get(60) or sys.exit("a message is lost"))
        took_s = time.perf_counter() - began
        return {"per_s": messages / took_s} | costs(before, messages)


async def _fifty(contact: str, name: str, messages: int) -> Found:
    async with cassieq.connect_async(contact, keyspace=KEYSPACE) as client:
        queue = await client.create_queue(name)
        took: list[float] = []

        async def produce() -> None:
            for _ in range(messages // 50):
                await queue.put(repr(time.perf_counter()).encode())

        async def consume() -> None:
            while len(took) < messages:
                for message in await queue.get(max_messages=1, wait=1):
                    took.append(time.perf_counter() - float(message.body))
                    await queue.ack(message)

        before, began = cas_counts(), time.perf_counter()
        await asyncio.gather(*[f() for _ in range(50) for f in (produce, consume)])
        took_s = time.perf_counter() - began
        return {"per_s": messages / took_s, "p50_ms": 1e3 * median(took)} | costs(before, messages)


async def _puts(contact: str, name: str, messages: int) -> Found:
    async with cassieq.connect_async(contact, keyspace=KEYSPACE) as client:
        queue = await client.create_queue(name)

        async def produce(count: int) -> None:
            for _ in range(count):
                await queue.put(BODY)

        await asyncio.gather(*[produce(4) for _ in range(64)])
        before, began = cas_counts(), time.perf_counter()
        await asyncio.gather(*[produce(messages // 64) for _ in range(64)])
        took_s = time.perf_counter() - began
        return {"per_s": messages // 64 * 64 / took_s} | costs(before, messages)


async def _polls(contact: str, name: str, _messages: int) -> Found:
    async with cassieq.connect_async(contact, keyspace=KEYSPACE) as client:
        queue = await client.create_queue(name)
        await queue.get()
        threads = threading.active_count()
        calls = [asyncio.create_task(queue.get(wait=POLLS_FOR_S + 3)) for _ in range(POLLS)]
        await asyncio.sleep(2)
        before = sum(metrics.STATEMENTS.values.values())
        await asyncio.sleep(POLLS_FOR_S)
        read = sum(metrics.STATEMENTS.values.values()) - before
        more = threading.active_count() - threads
        await asyncio.gather(*calls)
        return {"statements_per_s": read / POLLS_FOR_S, "threads": float(more)}


def drain(
    contact: str, name: str, messages: int, processes: int, buckets: int, *, one_by_one: bool
) -> Found:
    """Drain a backlog in so many buckets by so many processes, each with a client of its own."""
    context = multiprocessing.get_context("fork")  # nothing is open yet
    start = context.Barrier(processes + 1)
    filled, done, told = context.Event(), context.Value("i", 0), context.Queue()
    work = [
        context.Process(
            target=_drain,
            args=(contact, name, messages, one_by_one, (filled, start, done, told)),
            daemon=True,
        )
        for _ in range(processes)
    ]
    for one in work:
        one.start()
    with cassieq.connect(contact, keyspace=KEYSPACE) as client:
        queue = client.create_queue(name, bucket_size=messages // buckets)
        queue.put_many([BODY] * messages)
        filled.set()
        start.wait(600)
        results = [told.get(timeout=600) for _ in work]
        for one in work:
            one.join(60)
        seconds = max(r["ended"] for r in results) - min(r["began"] for r in results)
        total = Counter[str]()
        for r in results:
            total.update(r["cas"])
        sent = sum(total.values())
        if sum(r["count"] for r in results) != messages:
            sys.exit(f"{messages} in, {[r['count'] for r in results]} out")
        return {
            "per_s": messages / seconds,
            "cas_per_message": sent / messages,
            "conflicts_per_cas": total["refused"] / max(sent, 1),
        }


def _drain(contact: str, name: str, messages: int, one_by_one: Any, shared: Any) -> None:
    filled, start, done, told = shared
    filled.wait(600)
    with cassieq.connect(contact, keyspace=KEYSPACE) as client:
        queue = client.queue(name)
        before = cas_counts()
        start.wait(600)
        began = ended = time.monotonic()
        count = 0

        def note(some: int) -> None:
            nonlocal count, ended
            count, ended = count + some, time.monotonic()
            with done.get_lock():
                done.value += some

        if one_by_one:
            with queue.consumer(prefetch=2 * AT_ONCE) as messages_of:
                while done.value < messages:
                    message = messages_of.get(0.2)
                    if message is not None:
                        messages_of.ack(message)
                        note(1)
        else:
            while done.value < messages:
                found = queue.get(AT_ONCE, wait=0.2)
                if found:
                    queue.ack(found)
                    note(len(found))
        spent = Counter(cas_counts())
        spent.subtract(before)
        told.put({"began": began, "ended": ended, "count": count, "cas": dict(spent)})


def main(contact: str, name: str, case: str, messages: int, *sizes: int) -> Found:
    """Run one case."""
    simple: dict[str, Callable[[str, str, int], Found]] = {
        "cycle": cycle,
        "blocking": blocking,
        "consumer": consumer,
        "fifty": lambda *to: asyncio.run(_fifty(*to)),
        "puts": lambda *to: asyncio.run(_puts(*to)),
        "polls": lambda *to: asyncio.run(_polls(*to)),
    }
    if case in simple:
        return simple[case](contact, name, messages)
    return drain(contact, name, messages, *sizes, one_by_one=case == "drain_consumer")


if __name__ == "__main__":
    contact_point, queue_name, which, *numbers = sys.argv[1:]
    found = main(contact_point, queue_name, which, *map(int, numbers))
    print(json.dumps(found | {"package": cassieq.__file__}))
