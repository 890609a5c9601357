"""Forks with an open client: the child tries everything, and ends its blocks; the parent goes on.

Prints one JSON line: what the child was told of each use, how it ended, and what the parent did.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

HANGS_AFTER_S = 60


def told(use: Callable[[], object]) -> str:
    began_s = SystemClock().monotonic()
    try:
        use()
    except Exception as error:  # noqa: BLE001 - it is what is reported
        took_s = SystemClock().monotonic() - began_s
        return f"{type(error).__name__}: {error}" + (" (late)" if took_s > 5 else "")
    return "nothing"


def uses(
    client: cassieq.Client, queue: cassieq.Queue, consumer: cassieq.Consumer, got: cassieq.Delivery
) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: queue.put(b"child"),
        "get": lambda: queue.get(wait=1),
        "ack": lambda: queue.ack(got),
        "stats": queue.stats,
        "queues": client.queues,
        "queue": lambda: client.queue(queue.name),
        "now_us": client.now_us,
        "Consumer.get": consumer.get,
        "Consumer.ack": lambda: consumer.ack(got),
        "Consumer.flush": consumer.flush,
    }


def main(points: str, keyspace: str, name: str, *, is_measured: bool) -> None:
    reader, writer = os.pipe()
    pid = None
    with cassieq.connect(points, keyspace=keyspace) as client:
        queue = client.queue(name)
        with queue.consumer(prefetch=4) as consumer:
            got = consumer.get(30)
            assert got is not None
            if not is_measured:
                client.store.clock._anchor = None  # type: ignore[attr-defined]  # as if it was new
            pid = os.fork()
            if pid == 0:
                signal.alarm(HANGS_AFTER_S)
                found = {key: told(use) for key, use in uses(client, queue, consumer, got).items()}
                os.write(writer, json.dumps(found).encode())
            else:
                os.close(writer)
                with os.fdopen(reader) as pipe:
                    in_child = json.loads(pipe.read() or "{}")
                _, status = os.waitpid(pid, 0)
                consumer.ack(got)
                queue.put(b"parent")
                there = consumer.get(30)
                report = {"child": in_child, "status": status, "parent": there is not None}
                print(json.dumps(report))  # noqa: T201 - its result
    if pid == 0:
        sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:4], is_measured=sys.argv[4] == "measured")
