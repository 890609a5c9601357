"""`Queue`: what a user holds of one queue; checks arguments, delegates, holds no rules."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.settlement import Extend, Reject, Release
from cassieq_spark.options import arguments
from cassieq_spark.queue import admin
from cassieq_spark.queue.consumer import Consumer, Ways
from cassieq_spark.queue.get.poll import GetRequest, Getter
from cassieq_spark.queue.inspect.stats import QueueStats, peek, stats
from cassieq_spark.queue.lane import look_again
from cassieq_spark.queue.message import Message, time_of
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.producer import Producer, message_id_texts
from cassieq_spark.queue.settle import receipts, settle
from cassieq_spark.queue.settle.ack_group import AckGroup, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.settlement import Action
    from cassieq_spark.options import QueueSettings
    from cassieq_spark.queue.lane import Lane

    Seconds = float | timedelta
    Held = Message | str

LOOK_AGAIN_S: Final = 5.0
"""So often a handle reads its queue's row: altered settings and a deletion are seen within 10 s."""


@dataclass(slots=True)
class Work:
    """What one client keeps for one lane, whoever opens the queue in it, and from which thread."""

    producer: Producer = field(default_factory=Producer)
    getter: Getter = field(default_factory=Getter)
    acks: AckGroup = field(default_factory=AckGroup)


class Queue:
    """One queue. Threads may share it; not picklable."""

    def __init__(self, lane: Lane, work: Work | None = None) -> None:
        self._known_lane = lane
        self._work = work or Work()
        self._looked_at = lane.clock.monotonic()
        self._looking = threading.Lock()

    @property
    def name(self) -> str:
        """Its name."""
        return self._known_lane.queue

    @property
    def settings(self) -> QueueSettings:
        """As they were when last looked at, a few seconds ago at most while the queue is used."""
        return self._known_lane.settings

    def put(
        self,
        body: bytes,
        *,
        delay: Seconds = 0,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: UUID | str | None = None,
    ) -> str:
        """Put one message. When this returns, it will be delivered until somebody acks it (I1).

        Args:
            body: 0 B to 16 MiB.
            delay: Seconds or timedelta, up to 30 days, before which nobody gets it.
            tag: One word about it.
            headers: More words: text by text, with the tag at most 1 MiB.
            message_id: A UUID or its text, for your own bookkeeping; default: one that is made of
                queue and id. Two messages may have the same: the queue does not compare them.

        Returns:
            The message id.

        Raises:
            BodyInvalid, OptionInvalid: An argument has a wrong form; nothing was written.
            PutAmbiguous: Nobody knows whether it will be delivered; names the id.
            QueueDeleted: The queue is gone.
            StoreError: It was not stored.
        """
        ids = [message_id] if message_id is not None else None
        return self._put([body], delay, tag, headers, ids)[0]

    def put_many(
        self,
        bodies: Iterable[bytes],
        *,
        delay: Seconds = 0,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_ids: Sequence[UUID | str | None] | None = None,
    ) -> list[str]:
        """Put messages together: a few rows and round trips for thousands. Not all or nothing.

        Delay, tag and headers are the same for all.

        Returns:
            Their message ids, in order.

        Raises:
            PutAmbiguous: Also where a part is stored and the rest is not: ``stored`` names those.
            BodyInvalid, OptionInvalid, QueueDeleted, StoreError: As `put`; nothing was stored.
        """
        return self._put(bodies, delay, tag, headers, message_ids)

    def get(
        self,
        max_messages: int = 10,
        *,
        visibility_timeout: Seconds | None = None,
        wait: Seconds = 0,
        consumer: str | None = None,
    ) -> list[Message]:
        """Lease messages: nobody else gets them before the visibility timeout is over.

        One LWT per bucket, whatever the number: get and ack hundreds together where you can.

        Args:
            max_messages: At most so many; fewer may come, but never none while one is visible.
            visibility_timeout: 0.1 s to 30 days; default: the queue's.
            wait: Seconds to wait for the first message.
            consumer: A name that ``stats`` shows; default: host and process.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
            StoreError: What was claimed comes back after its timeout, if not before.
        """
        at_most = arguments.count("max_messages", max_messages)
        wanted = self._wanted(at_most, visibility_timeout, wait, consumer)
        return self._work.getter.get(self._lane, wanted)

    def consumer(
        self,
        *,
        prefetch: int = 100,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        consumer: str | None = None,
    ) -> Consumer:
        """Messages one at a time for the price of many: got ahead, acked together, in a ``with``.

        Args:
            prefetch: At most so many lie ready here, where nobody else gets them.
            visibility_timeout: As of `get`; at least half of it is left when a message is handed
                out, unless the store is slow.
            idle_timeout: Iteration ends when none came for so long; default: never.
            consumer: As of `get`.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
        """
        ways = Ways(
            lane=lambda: self._lane,
            receipts=self._receipts,
            wanted=self._wanted(
                arguments.count("prefetch", prefetch), visibility_timeout, 0, consumer
            ),
            getter=self._work.getter,
            acks=self._work.acks,
        )
        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        return Consumer(ways, idle_timeout_s=idle_s)

    def ack(self, messages: Held | Iterable[Held]) -> None:
        """Say that messages are done: they are never delivered again (I4).

        One LWT per bucket for all of a list. To ack the same again is harmless.

        Args:
            messages: A `Message`, its receipt, or a list of either.

        Raises:
            ReceiptInvalid: One is no receipt of this queue; nothing was acked.
            ReceiptExpired: Names the receipts whose delivery had ended; the others are acked.
            StoreError: It is unknown of some whether they are acked. Ack again.
        """
        given = self._receipts(messages)
        verdicts, failure = self._work.acks.ack(self._lane, given)
        if failure is not None:
            raise failure
        pairs = zip(given, verdicts, strict=True)
        stale = [one for one, verdict in pairs if verdict is Verdict.STALE]
        if Verdict.UNKNOWN in verdicts:
            raise receipts.foreign(self._known_lane, "names messages that were never there")
        if stale:
            raise settle.expired(self._lane, stale)

    def ack_each(self, messages: Iterable[Held]) -> list[Verdict]:
        """As `ack`, with a verdict for each message instead of an error; in their order.

        Raises:
            ReceiptInvalid: One is no receipt of this queue; nothing was acked.
            QueueDeleted: The queue is gone.
        """
        given = self._receipts(messages)
        verdicts, _ = self._work.acks.ack(self._lane, given)
        return verdicts

    def extend(self, messages: Held | Iterable[Held], visibility_timeout: Seconds) -> datetime:
        """Let leases run out later, or sooner: so long from now. The receipts stay good.

        Args:
            visibility_timeout: 0 to 30 days; 0 gives the messages back.

        Returns:
            When they run out, UTC; a moment later where the store took long.

        Raises:
            ReceiptInvalid: One is no receipt of this queue; nothing was changed.
            ReceiptExpired: Names those whose delivery had ended; the others are extended.
        """
        duration_us = arguments.extension_us(visibility_timeout)
        given = self._receipts(messages)
        lane = self._lane
        now_us = lane.clock.now_us()
        self._settle(lane, given, Extend(visibility_us=duration_us) if duration_us else Release())
        return time_of(now_us + duration_us)

    def release(self, messages: Held | Iterable[Held], *, delay: Seconds = 0) -> None:
        """Give messages back: somebody else may have them, at once or after a delay.

        It uses up the delivery, and makes the receipts stale.

        Raises:
            ReceiptInvalid: One is no receipt of this queue; nothing was changed.
            ReceiptExpired: Names those whose delivery had ended; the others are given back.
        """
        delay_us = arguments.delay_us(delay)
        given = self._receipts(messages)
        lane = self._lane
        due_us = lane.clock.now_us() + delay_us if delay_us else None
        self._settle(lane, given, Release(due_us=due_us))

    def reject(self, messages: Held | Iterable[Held], *, reason: str = "rejected") -> None:
        """Judge messages dead, whatever deliveries they had left; repair moves them, and says why.

        Raises:
            OptionInvalid, ReceiptInvalid: Nothing was changed.
            UsageError: There is no dead-letter queue; nothing was changed.
            ReceiptExpired: Names those whose delivery had ended; the others are dead.
        """
        why = arguments.reason(reason)
        given = self._receipts(messages)
        self._settle(self._lane, given, Reject(reason=why))

    def update(
        self,
        message: Message,
        *,
        body: bytes | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> Message:
        """Give a message that is held another body, another timeout, or both.

        It is the same delivery: its count stays. The old receipt is stale, the returned message has
        the new one.

        Args:
            body: Default: it stays.
            visibility_timeout: From now; default: it stays; 0: the message is given back, and the
                returned one has no receipt.

        Raises:
            BodyInvalid, OptionInvalid, ReceiptInvalid: Nothing was changed.
            ReceiptExpired: The delivery had ended; nothing was changed.
            UsageError: A Spark batch holds the message.
        """
        duration_us = (
            None if visibility_timeout is None else arguments.extension_us(visibility_timeout)
        )
        new_body = None if body is None else arguments.body(body)
        if not isinstance(message, Message):
            raise ReceiptInvalid(
                f"update takes a Message, as get and update return it, not {type(message).__name__}"
            )
        (receipt,) = self._receipts(message)
        lane = self._lane
        lease = settle.update(
            lane,
            receipt,
            body=new_body,
            visibility_us=duration_us or None,
            gives_back=duration_us == 0,
        )
        return replace(
            message,
            body=message.body if new_body is None else new_body,
            proof=None if lease is None else replace(receipt, lease_id=lease.lease_id),
            visible_until=None if lease is None else time_of(lease.until_us),
        )

    def peek(self, max_messages: int = 10) -> list[Message]:
        """Look at visible messages; they stay visible, and have no receipt.

        Raises:
            OptionInvalid: ``max_messages`` is out of range.
            QueueDeleted: The queue is gone.
            StoreError: A part of the queue did not answer, and the rest has nothing to show.
        """
        return peek(self._lane, arguments.count("max_messages", max_messages))

    def stats(self) -> QueueStats:
        """Count what is in the queue: one read per bucket that repair has not dropped.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: A part of it did not answer: a count without it would be wrong.
        """
        return stats(self._lane)

    def purge(self) -> int:
        """Drop all messages: visible, leased, delayed and dead. Returns how many.

        Raises:
            QueueDeleted: The queue is gone.
        """
        return admin.purge(self._lane)

    def delete(self) -> None:
        """End the queue with all it holds; whoever still has it open gets `QueueDeleted`.

        Raises:
            QueueNotFound: It is gone already. One that was created since stays.
        """
        lane = self._known_lane
        admin.delete(lane.store, lane.queue, lane.lane_id)

    @property
    def _lane(self) -> Lane:
        """With its settings of a few seconds ago at most."""
        now = self._known_lane.clock.monotonic()
        if now - self._looked_at > LOOK_AGAIN_S and self._looking.acquire(blocking=False):
            try:
                self._known_lane = look_again(self._known_lane)
                self._looked_at = now
            finally:
                self._looking.release()
        return self._known_lane

    def _wanted(
        self, at_most: int, visibility: Seconds | None, wait: Seconds, consumer: str | None
    ) -> GetRequest:
        visibility_us = None if visibility is None else arguments.visibility_us(visibility)
        return GetRequest(
            at_most=at_most,
            owner=_default_owner() if consumer is None else arguments.consumer(consumer),
            wait_s=arguments.wait_s(wait),
            visibility_us=visibility_us or int(self._lane.settings.visibility_timeout_s * 1e6),
        )

    def _put(
        self,
        bodies: Iterable[object],
        delay: object,
        tag: object,
        headers: object,
        message_ids: Sequence[object] | None,
    ) -> list[str]:
        delay_us = arguments.delay_us(delay)
        rows = encode.messages(bodies, tag=tag, headers=headers, message_ids=message_ids)
        if not rows:
            return []
        lane = self._lane
        packed = encode.pack(rows, delay_us=delay_us, bucket_size=lane.bucket_size)
        return message_id_texts(lane, self._work.producer.put(lane, packed))

    def _settle(self, lane: Lane, given: list[Receipt], action: Action) -> None:
        refused, _ = settle.settle_receipts(lane, given, action)
        if refused:
            raise settle.expired(lane, refused)

    def _receipts(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        return receipts.checked(self._known_lane, messages)

    def __repr__(self) -> str:
        """Name and lane."""
        return f"Queue({self.name!r})"


def _default_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
