"""Puts for ever, one and many, at once and delayed; says what it was told of each message."""

from __future__ import annotations

import itertools
import os
from functools import partial

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.errors import PutAmbiguous, StoreError
from tests.storm import dials
from tests.storm.children.threads import together
from tests.storm.history import Recorder

THREADS = 4
"""A request to a node that is stopped is waited for: others should get on meanwhile."""

PAUSE_S = 0.8
MOST_AT_ONCE = 6


def main(
    *,
    who: str,
    contact_points: str,
    keyspace: str,
    queue: str,
    directory: str,
    dials_file: str,
    loses: bool,
    seed: int,
) -> None:
    """Never returns; what is no `StoreError` ends it, and the runner sees that."""
    record = Recorder(directory, who)
    dials.install(dials_file, seed, loses=loses, record=record)
    opened = _opened(contact_points, keyspace, queue)
    numbers = itertools.count()
    together([partial(_put, opened, record, numbers, seed + 7 * n) for n in range(THREADS)])


def _put(queue: cassieq.Queue, record: Recorder, numbers: itertools.count[int], seed: int) -> None:
    rng = generator(seed)
    while True:
        many = rng.randint(1, MOST_AT_ONCE) if rng.random() < 0.5 else 1
        keys = [f"{record.who}.{os.getpid()}.{next(numbers)}" for _ in range(many)]
        ids = [str(new_uuid()) for _ in keys]
        delay = rng.choice((1, 2, 3)) if rng.random() < 0.1 else 0
        op = record.begin("puts", keys=keys, delay=delay)
        try:
            if many == 1:
                queue.put(keys[0].encode(), delay=delay, message_id=ids[0])
            else:
                queue.put_many([key.encode() for key in keys], delay=delay, message_ids=ids)
        except PutAmbiguous as error:
            named = dict(zip(ids, keys, strict=True))
            record.say(
                "put",
                op=op,
                stored=[named[one] for one in error.stored],
                unknown=[named[one] for one in error.message_ids],
            )
            record.say("failed", error=str(error))
        except StoreError as error:
            record.say("put", op=op, stored=[], unknown=[])
            record.say("failed", error=str(error))
        else:
            record.say("put", op=op, stored=keys, unknown=[])
        SystemClock().wait(rng.uniform(0, 2 * PAUSE_S))


def _opened(contact_points: str, keyspace: str, queue: str) -> cassieq.Queue:
    """A node may be away just now."""
    while True:
        try:
            return cassieq.connect(contact_points, keyspace=keyspace).queue(queue)
        except StoreError:
            SystemClock().wait(PAUSE_S)
