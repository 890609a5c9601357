"""The longest CPU time of one callback of the engine's event loop, for each of some works.

Arguments: contact points, keyspace, queue. Prints JSON: by work, for each time that it was done,
the longest callbacks in milliseconds of CPU, with what they ran, and how long a `unit` took.

The clock is the thread's CPU time: a machine that is busy, or a node that is slow, changes nothing.
No garbage is collected meanwhile: when that happens is the interpreter's choice, and how long it
takes is a matter of all objects that there are.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from statistics import median
from time import thread_time
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINE = "cassieq-engine"
LARGE = 1 << 20
SMALL = b"x" * 100
TIMES = 2
KEPT = 5

took: list[tuple[float, str]] = []
"""CPU seconds of each callback since the last `longest`, and what it was."""

_run: Callable[[Any], None] = asyncio.Handle._run


def timed(handle: Any) -> None:
    """Run a callback, and note how long it kept the loop."""
    if threading.current_thread().name != ENGINE:
        _run(handle)
        return
    what = handle._callback
    began = thread_time()
    _run(handle)
    took.append((thread_time() - began, named(what)))


def named(what: Any) -> str:
    """The coroutine or function of a callback."""
    task = getattr(what, "__self__", None)
    if isinstance(task, asyncio.Task):
        frames = [frame.f_code.co_qualname for frame in task.get_stack()]
        return f"{getattr(task.get_coro(), '__qualname__', task)} in {frames}"
    return getattr(what, "__qualname__", type(what).__name__)


def unit() -> float:
    """CPU seconds of a fixed piece of work of some milliseconds."""
    began = thread_time()
    made = {number: str(number) for number in range(20_000)}
    sorted(made.items(), key=lambda item: item[1])
    return thread_time() - began


def longest(do: Callable[[], object]) -> dict[str, Any]:
    """Do a work; return its longest callbacks, and what a unit of work takes meanwhile."""
    units = [unit() for _ in range(5)]
    took.clear()
    do()
    found = sorted(took, reverse=True)[:KEPT]
    units += [unit() for _ in range(5)]
    return {
        "longest": [[1e3 * seconds, what] for seconds, what in found],
        "unit_ms": 1e3 * median(units),
        "callbacks": len(took),
    }


def main() -> None:
    """Do each work once, and print."""
    contact_points, keyspace, name = sys.argv[1:]
    with cassieq.connect(contact_points, keyspace=keyspace) as client:
        queue = client.queue(name)
        works: dict[str, Callable[[], object]] = {
            "put_many of 2,000": lambda: queue.put_many([SMALL] * 2_000),
            "get and ack of 1,000": lambda: queue.ack(queue.get(1_000)),
            "extend of 1,000": lambda: extend(queue),
            "200 put one by one": lambda: singly(queue),
            "bodies of 1 MiB": lambda: large(queue),
            "consumer": lambda: consume(queue),
        }
        asyncio.Handle._run = timed
        gc.disable()
        found: dict[str, list[dict[str, Any]]] = {work: [] for work in works}
        for _ in range(TIMES):
            for work, do in works.items():
                found[work].append(longest(do))
                gc.collect()
    print(json.dumps(found))  # noqa: T201 - for the test


def extend(queue: cassieq.Queue) -> None:
    """Extend the leases of a get, and end with them."""
    messages = queue.get(1_000)
    queue.extend(messages, 1_200)
    queue.ack(messages)


def singly(queue: cassieq.Queue) -> None:
    """Get together what was put apart: each message is a chunk of its own."""
    for _ in range(200):
        queue.put(SMALL)
    queue.ack(queue.get(1_000))


def large(queue: cassieq.Queue) -> None:
    """Put, get and ack bodies that are large, one and several."""
    queue.put(b"x" * LARGE)
    queue.put_many([bytes([number]) * LARGE for number in range(8)])
    for _ in range(2):
        queue.ack(queue.get(1_000))


def consume(queue: cassieq.Queue) -> None:
    """Consume a backlog one by one."""
    queue.put_many([SMALL] * 2_000)
    with queue.consumer(prefetch=500, idle_timeout=0.5) as consumer:
        for message in consumer:
            consumer.ack(message)


if __name__ == "__main__":
    main()
