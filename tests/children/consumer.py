"""Gets for ever, from the queue and from its dead letters; acks, extends, updates, gives back,
rejects, forgets, and says what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.errors import ReceiptExpired, StoreError
from tests.children.together import opened, recorder, together
from tests.storm.history import Recorder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from cassieq_spark.queue.message import Delivery


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a consumer works.

    Attributes:
        threads: A request to a node that is stopped is waited for: others should get on meanwhile.
        pause_s: Between two rounds of a thread, on average: the processes of a storm share two
            cores with four JVMs.
        at_most: A round gets one of these numbers of messages.
        holds_s: And for one of these times.
        fates: What becomes of a message, by weight: ``ack``, ``extend``, ``update``, ``release``,
            ``delay``, ``reject`` (only where there are dead letters) or ``forget``.
    """

    threads: int = 4
    pause_s: float = 0.8
    at_most: Sequence[int] = (1, 5, 20, 60)
    holds_s: Sequence[float] = (1.0, 2.0, 3.0)
    fates: Mapping[str, int] = field(
        default_factory=lambda: {
            "ack": 70,
            "extend": 6,
            "update": 4,
            "release": 6,
            "delay": 4,
            "reject": 2,
            "forget": 8,
        }
    )


def key_of(body: bytes) -> str:
    """An update adds to a body; its first word stays."""
    return body.decode().partition("|")[0]


def place_of(lane: object, number: int) -> str:
    """The name of a message: each lane of a queue counts from 0."""
    return f"{lane}:{number}"


def named(messages: list[Delivery]) -> list[tuple[str, str, int]]:
    return [(key_of(one.body), place_of(one.lane, one.id), one.delivery_count) for one in messages]


class Consumer:
    """One consumer's hands."""

    def __init__(self, queue: cassieq.Queue, record: Recorder) -> None:
        self._queue = queue
        self._record = record

    def get(self, at_most: int, hold_s: float, wait_s: float) -> list[Delivery]:
        begun = self._record.now()
        messages = self._queue.get(at_most, visibility_timeout=hold_s, wait=wait_s)
        if messages:
            self._record.say(
                "got", begun=begun, queue=self._queue.name, hold=hold_s, named=named(messages)
            )
        return messages

    def ack(self, messages: list[Delivery]) -> None:
        if messages:
            op = self._begin("acks", messages)
            verdicts = self._queue.ack_each(messages)
            self._record.say("acked", op=op, verdicts=[verdict.value for verdict in verdicts])

    def extend(self, messages: list[Delivery], hold_s: float) -> None:
        for one in messages:
            op = self._begin("extends", [one], hold=hold_s)
            try:
                self._queue.extend(one, hold_s)
            except ReceiptExpired:
                continue
            self._record.say("extended", op=op)

    def update(self, messages: list[Delivery]) -> list[Delivery]:
        """What it still holds, with other bodies."""
        updated = []
        for one in messages:
            try:
                updated.append(self._queue.update(one, body=one.body + b"|again"))
            except ReceiptExpired:
                continue
        return updated

    def give(self, act: Callable[[list[Delivery]], None], messages: list[Delivery]) -> None:
        if messages:
            self._record.say("gives", queue=self._queue.name, named=named(messages))
            try:
                act(messages)
            except ReceiptExpired:
                return

    def work(self, rng: random.Random, pace: Pace) -> None:
        """One round."""
        messages = self.get(rng.choice(pace.at_most), rng.choice(pace.holds_s), 0.2)
        weights = dict(pace.fates)
        if self._queue.settings.dead_letter_queue is None:
            weights.pop("reject", None)
        drawn = rng.choices(list(weights), list(weights.values()), k=len(messages))
        fates: dict[str, list[Delivery]] = {}
        for one, fate in zip(messages, drawn, strict=True):
            fates.setdefault(fate, []).append(one)
        self.extend(fates.get("extend", []), rng.choice(pace.holds_s))
        done = [*fates.get("ack", []), *fates.get("extend", [])]
        self.ack([*done, *self.update(fates.get("update", []))])
        self.give(self._queue.release, fates.get("release", []))
        self.give(lambda some: self._queue.release(some, delay=1), fates.get("delay", []))
        self.give(self._queue.reject, fates.get("reject", []))

    def _begin(self, what: str, messages: list[Delivery], **fields: float) -> str:
        return self._record.begin(what, queue=self._queue.name, named=named(messages), **fields)


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
    consumers = [Consumer(queue, record) for queue in opened(contact_points, keyspace, queues)]
    record.say("connected")
    own = Pace(**pace or {})
    together([partial(_rounds, consumers, record, own, seed + 7 * n) for n in range(own.threads)])


def _rounds(consumers: list[Consumer], record: Recorder, pace: Pace, seed: int) -> None:
    """Of several queues the first is the main one."""
    rng = generator(seed)
    weights = (9, *[1] * (len(consumers) - 1))
    while True:
        try:
            rng.choices(consumers, weights)[0].work(rng, pace)
        except StoreError as error:
            record.say("failed", error=str(error))
        SystemClock().wait(rng.uniform(0, 2 * pace.pause_s))
