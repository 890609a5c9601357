"""Gets for ever, from the queue and from its dead letters; acks, extends, updates, gives back,
rejects, forgets, and says what it did."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.errors import ReceiptExpired, StoreError
from tests.storm import dials
from tests.storm.children.threads import together
from tests.storm.history import Recorder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from cassieq_spark.queue.message import Message

THREADS = 4
"""A request to a node that is stopped is waited for: others should get on meanwhile."""

PAUSE_S = 0.8
"""Between two rounds: the processes of a storm share two cores with four JVMs."""

HOLDS_S = (1.0, 2.0, 3.0)


def key_of(body: bytes) -> str:
    """An update adds to a body; its first word stays."""
    return body.decode().partition("|")[0]


def named(messages: list[Message]) -> list[tuple[str, int, int]]:
    return [(key_of(one.body), one.id, one.delivery_count) for one in messages]


class Consumer:
    """One consumer's hands."""

    def __init__(self, queue: cassieq.Queue, record: Recorder) -> None:
        self._queue = queue
        self._record = record

    def get(self, at_most: int, hold_s: float, wait_s: float) -> list[Message]:
        begun = self._record.now()
        messages = self._queue.get(at_most, visibility_timeout=hold_s, wait=wait_s)
        if messages:
            self._record.say(
                "got", begun=begun, queue=self._queue.name, hold=hold_s, named=named(messages)
            )
        return messages

    def ack(self, messages: list[Message]) -> None:
        if messages:
            op = self._begin("acks", messages)
            verdicts = self._queue.ack_each(messages)
            self._record.say("acked", op=op, verdicts=[verdict.value for verdict in verdicts])

    def extend(self, messages: list[Message], hold_s: float) -> None:
        for one in messages:
            op = self._begin("extends", [one], hold=hold_s)
            try:
                self._queue.extend(one, hold_s)
            except ReceiptExpired:
                continue
            self._record.say("extended", op=op)

    def update(self, messages: list[Message]) -> list[Message]:
        """What it still holds, with other bodies."""
        updated = []
        for one in messages:
            try:
                updated.append(self._queue.update(one, body=one.body + b"|again"))
            except ReceiptExpired:
                continue
        return updated

    def give(self, act: Callable[[list[Message]], None], messages: list[Message]) -> None:
        if messages:
            self._record.say("gives", queue=self._queue.name, named=named(messages))
            try:
                act(messages)
            except ReceiptExpired:
                return

    def work(self, rng: random.Random) -> None:
        """One round."""
        hold_s = rng.choice(HOLDS_S)
        messages = self.get(rng.choice((1, 5, 20, 60)), hold_s, 0.2)
        fates: dict[str, list[Message]] = {}
        for one in messages:
            fate = rng.choices(
                ("ack", "extend", "update", "release", "delay", "reject", "forget"),
                (70, 6, 4, 6, 4, 2 if self._has_dead_letters else 0, 8),
            )[0]
            fates.setdefault(fate, []).append(one)
        self.extend(fates.get("extend", []), rng.choice(HOLDS_S))
        done = [*fates.get("ack", []), *fates.get("extend", [])]
        self.ack([*done, *self.update(fates.get("update", []))])
        self.give(self._queue.release, fates.get("release", []))
        self.give(lambda some: self._queue.release(some, delay=1), fates.get("delay", []))
        self.give(self._queue.reject, fates.get("reject", []))

    @property
    def _has_dead_letters(self) -> bool:
        return self._queue.settings.dead_letter_queue is not None

    def _begin(self, what: str, messages: list[Message], **fields: float) -> str:
        return self._record.begin(what, queue=self._queue.name, named=named(messages), **fields)


def main(
    *,
    who: str,
    contact_points: str,
    keyspace: str,
    queues: list[str],
    directory: str,
    dials_file: str,
    loses: bool,
    seed: int,
) -> None:
    """Never returns; what is no `StoreError` ends it, and the runner sees that."""
    record = Recorder(directory, who)
    dials.install(dials_file, seed, loses=loses, record=record)
    consumers = _connected(contact_points, keyspace, queues, record)
    together([partial(_rounds, consumers, record, seed + 7 * n) for n in range(THREADS)])


def _connected(
    contact_points: str, keyspace: str, queues: list[str], record: Recorder
) -> list[Consumer]:
    """One for each queue. A node may be away just now."""
    while True:
        try:
            client = cassieq.connect(contact_points, keyspace=keyspace)
            return [Consumer(client.queue(name), record) for name in queues]
        except StoreError:
            SystemClock().wait(PAUSE_S)


def _rounds(consumers: list[Consumer], record: Recorder, seed: int) -> None:
    rng = generator(seed)
    while True:
        try:
            rng.choices(consumers, (9, 1))[0].work(rng)
        except StoreError as error:
            record.say("failed", error=str(error))
        SystemClock().wait(rng.uniform(0, 2 * PAUSE_S))
