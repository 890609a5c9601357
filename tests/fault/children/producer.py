"""Puts for ever, from several threads; says of each message that its put has returned."""

from __future__ import annotations

import os
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.entropy import generator, new_uuid

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

READY = "ready"
MOST_AT_ONCE = 8


def main(*, contact_points: str, keyspace: str, queues: list[str], seed: int) -> None:
    """Per queue one thread that puts singly and one that puts many; never returns."""
    client = cassieq.connect(contact_points, keyspace=keyspace)
    opened = [client.queue(name) for name in queues]
    say([READY])
    rng = generator(seed)
    threads = [
        threading.Thread(
            target=for_ever, args=(partial(work, queue, generator(rng.randrange(1 << 32))),)
        )
        for work in (put_one, put_several)
        for queue in opened
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def for_ever(work: Callable[[], None]) -> None:
    try:
        while True:
            work()
    except BaseException:  # noqa: BLE001 - the test must hear of any: it expects SIGKILL, not this
        traceback.print_exc()
        os._exit(1)


def put_one(queue: cassieq.Queue, rng: random.Random) -> None:
    """With an id of ours or without: the first kind shows a message that was stored twice."""
    body = new_uuid()
    message_id = queue.put(body.hex.encode(), message_id=body if rng.random() < 0.5 else None)
    say([f"{message_id} {body.hex}"])


def put_several(queue: cassieq.Queue, rng: random.Random) -> None:
    bodies = [new_uuid() for _ in range(rng.randint(1, MOST_AT_ONCE))]
    ids = queue.put_many(
        [body.hex.encode() for body in bodies],
        message_ids=[body if rng.random() < 0.5 else None for body in bodies],
    )
    say(f"{message_id} {body.hex}" for message_id, body in zip(ids, bodies, strict=True))


def say(lines: Iterable[str]) -> None:
    """By one write, past all buffers: SIGKILL may cut the last line, and no other."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())
