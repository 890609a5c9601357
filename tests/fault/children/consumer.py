"""Gets for ever; acks some, gives some back, forgets the rest, and says what it did."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.clock import ClusterClock, SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.queue.settle.ack_group import Verdict
from tests.fault.children.deliveries import Log

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Message


class AheadClock(SystemClock):
    """This machine's clock, set wrong. Monotonic time is right: nobody can set that."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_us = int(ahead_s * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us


def main(
    *,
    contact_points: str,
    keyspace: str,
    queue: str,
    seed: int,
    visibility_s: float,
    at_once: int,
    acked: float,
    released: float = 0.0,
    clock_ahead_s: float = 0.0,
) -> None:
    """Never returns.

    Args:
        acked, released: The shares of what it gets; the rest it leaves to run out.
        clock_ahead_s: So much is this process's wall clock wrong.
    """
    # What it prints is its history: no warning may come between.
    logging.getLogger().addHandler(logging.NullHandler())
    client = cassieq.connect(contact_points, keyspace=keyspace)
    session = client._session
    session.clock = ClusterClock(AheadClock(clock_ahead_s), session.node_clocks)
    client._store.clock = session.clock
    opened = client.queue(queue)
    rng = generator(seed)
    log = Log(SystemClock().monotonic)
    while True:
        begun = log.now()
        messages = opened.get(at_once, visibility_timeout=visibility_s, wait=0.2)
        log.got(begun, messages)
        fates = [rng.random() for _ in messages]
        done = [one for one, fate in zip(messages, fates, strict=True) if fate < acked]
        back = [
            one
            for one, fate in zip(messages, fates, strict=True)
            if acked <= fate < acked + released
        ]
        ack(opened, done, log)
        release(opened, back, log)


def ack(queue: cassieq.Queue, messages: list[Message], log: Log) -> None:
    if messages:
        log.acking(messages)
        verdicts = zip(messages, queue.ack_each(messages), strict=True)
        log.acked([one for one, verdict in verdicts if verdict is Verdict.ACKED])


def release(queue: cassieq.Queue, messages: list[Message], log: Log) -> None:
    if messages:
        log.releasing(messages)
        # On a slow machine the lease may have run out by itself.
        with suppress(cassieq.ReceiptExpired):
            queue.release(messages)
