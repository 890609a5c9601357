"""Puts for ever, one and many, at once and delayed; says what it was told of each message."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.errors import PutAmbiguous, StoreError
from tests.children.together import opened, recorder, together
from tests.storm.history import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping


FAR_S = 190
"""With periods of a minute: a message waits in a due lane. Storms end sooner.

A batch that is run again more than a minute late puts some into ordinary lanes, with a delay.
"""

SHARED_S = 0.5
"""How long all producers put the same keys, and then others."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a producer works.

    Attributes:
        threads: A request to a node that is stopped is waited for: others should get on meanwhile.
        pause_s: Between two puts of a thread, on average: the processes of a storm share two cores
            with four JVMs.
        many: The most messages of a put; half of the puts have one.
        delayed: The share of puts with a delay.
        short_lived: The share of puts with a time to live.
        shared: The share of puts whose keys all producers put, at about the same time.
        far: The share of puts that are due much later; a third of those with one message are
            cancelled.
    """

    threads: int = 4
    pause_s: float = 0.8
    many: int = 6
    delayed: float = 0.1
    short_lived: float = 0.1
    shared: float = 0.2
    far: float = 0.0


def main(
    *,
    who: str,
    contact_points: str,
    keyspace: str,
    queues: list[str],
    directory: str,
    seed: int,
    dials_file: str | None = None,
    loses: bool = False,
    pace: Mapping[str, Any] | None = None,
) -> None:
    """Never returns; what is no `StoreError` ends it, and the runner sees that."""
    record = recorder(directory, who, seed, dials_file=dials_file, loses=loses)
    into = opened(contact_points, keyspace, queues)
    record.say("connected")
    own = Pace(**pace or {})
    numbers = itertools.count()
    together([partial(_put, into, record, numbers, own, seed + 7 * n) for n in range(own.threads)])


def _put(
    queues: list[cassieq.Queue],
    record: Recorder,
    numbers: itertools.count[int],
    pace: Pace,
    seed: int,
) -> None:
    rng = generator(seed)
    while True:
        queue = rng.choice(queues)
        many = rng.randint(1, pace.many) if rng.random() < 0.5 else 1
        keys = [f"{record.who}.{os.getpid()}.{next(numbers)}" for _ in range(many)]
        ids = [str(new_uuid()) for _ in keys]
        delay = rng.choice((1, 2, 3)) if rng.random() < pace.delayed else 0
        where: dict[str, Any] = {
            "priority": rng.randrange(queue.settings.priorities),
            "key": rng.choice((None, "a", "b", "c")),
        }
        ttl = rng.choice((1, 5, 20)) if rng.random() < pace.short_lived else None
        with_keys = [one for one in queues if one.settings.dedup_window_s is not None]
        is_shared = bool(with_keys) and rng.random() < pace.shared
        if is_shared:
            # Of one queue: a key belongs to it.
            queue, delay, ttl = with_keys[0], 0, None
            keys = [f"shared.{record.now() // SHARED_S:.0f}.{at}" for at in range(many)]
            where["dedup_keys"] = keys
        is_far = not is_shared and rng.random() < pace.far
        if is_far:
            delay, ttl = FAR_S, None
        is_cancelled = is_far and many == 1 and rng.random() < 1 / 3
        op = record.begin("puts", keys=keys, delay=delay, ttl=ttl, shared=is_shared, far=is_far)
        try:
            if is_cancelled:
                # A chosen id is not indexed.
                ids = [queue.put(keys[0].encode(), delay=delay, **where)]
            elif many == 1 and not is_shared:
                queue.put(keys[0].encode(), delay=delay, ttl=ttl, message_id=ids[0], **where)
            else:
                bodies = [key.encode() for key in keys]
                queue.put_many(bodies, delay=delay, ttl=ttl, message_ids=ids, **where)
        except PutAmbiguous as error:
            record.say("put", op=op, **_known(error, ids, keys, is_chosen=not is_cancelled))
            record.say("failed", error=str(error))
        except StoreError as error:
            record.say("put", op=op, stored=[], unknown=[])
            record.say("failed", error=str(error))
        else:
            record.say("put", op=op, stored=keys, unknown=[])
            if is_cancelled:
                _cancel(queue, record, keys[0], ids[0])
        SystemClock().wait(rng.uniform(0, 2 * pace.pause_s))


def _known(
    error: PutAmbiguous, ids: list[str], keys: list[str], *, is_chosen: bool
) -> dict[str, list[str]]:
    """What became of the messages of a put, as far as it was told."""
    if not is_chosen:
        return {"stored": [], "unknown": keys}
    named = dict(zip(ids, keys, strict=True))
    return {
        # A duplicate has the id of the message that was put before.
        "stored": [named[one] for one in error.stored if one in named],
        "unknown": [named[one] for one in error.message_ids if one in named],
    }


def _cancel(queue: cassieq.Queue, record: Recorder, key: str, message_id: str) -> None:
    op = record.begin("cancels", key=key)
    try:
        is_done = queue.cancel(message_id)
    except StoreError as error:
        record.say("failed", error=str(error))
    else:
        record.say("cancelled", op=op, key=key, done=is_done)
