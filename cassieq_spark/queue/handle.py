"""`Queue` is the public handle of a queue. It checks arguments and delegates; it has no rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from cassieq_spark import tracing
from cassieq_spark.doors import blocking
from cassieq_spark.errors import CassieqError, QueueDeleted, ReceiptInvalid
from cassieq_spark.model.backoff import DEFAULT_BACKOFF, Backoff
from cassieq_spark.model.frozen import FrozenDict
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lease import EXPIRY_MARGIN_US
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.rows.intents import ACK
from cassieq_spark.model.settlement import Action, Extend, Reject, Release
from cassieq_spark.options import QueueSettings, Seconds, arguments
from cassieq_spark.queue import admin, pause
from cassieq_spark.queue.consumer import Consumer, ConsumerContext
from cassieq_spark.queue.find import refreshed
from cassieq_spark.queue.get.getter import GetRequest
from cassieq_spark.queue.handling import Failure, settlement
from cassieq_spark.queue.inspect.facts import peek
from cassieq_spark.queue.inspect.stats import QueueStats, ScheduledHour, by_hour, stats
from cassieq_spark.queue.keeping import Kept, Processing
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery, Held, Message, updated
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.queue.put.together import Where
from cassieq_spark.queue.settle import settle
from cassieq_spark.queue.settle.settle import AckResult, cancel
from cassieq_spark.queue.waiting import Work, give_back
from cassieq_spark.recent import Recent
from cassieq_spark.store import caller
from cassieq_spark.store.process import OfOneProcess

LOOK_AGAIN_S: Final = 5.0
"""The interval at which a handle reads its queue's row: it sees changes within 10 s."""


class Queue(OfOneProcess):
    """Handle to a queue. Threads may share it; it does not pickle."""

    def __init__(self, lane: Lane, works: Recent[LaneId, Work]) -> None:
        self._lane = lane
        self._work = works.get_or_make(lane.lane_id, partial(Work, lane.store.entropy))
        self._works = works
        self._looked_at = lane.clock.monotonic()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._lane.queue

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, at most a few seconds old while the queue is used."""
        return self._lane.settings

    @property
    def labels(self) -> Mapping[str, str]:
        """The queue's labels, as old as its settings. See `Client.label_queue`."""
        return FrozenDict(self._lane.row.labels)

    @property
    def created_at(self) -> datetime:
        """The time when the queue was created, UTC."""
        return time_of(self._lane.created_us)

    @blocking
    async def put(
        self,
        body: bytes,
        *,
        priority: int = 0,
        key: str | None = None,
        delay: Seconds = 0,
        due_at: datetime | None = None,
        ttl: Seconds | None = None,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
        message_id: UUID | str | None = None,
        dedup_key: str | None = None,
        dedup_until: str = "window",
    ) -> PutResult:
        """Put one message. Once this returns, it is delivered until it is acked or expires.

        Args:
            body: 0 B to 16 MiB.
            priority: 0 to one less than the queue's ``priorities``. Higher priorities go first.
            key: A text of at most 1 KiB. A producer's messages with the same key stay in order.
            delay: Seconds or timedelta, up to 400 days, before consumers can get the message.
            due_at: Instead of a delay, a time with a time zone before which consumers cannot get
                it.
            ttl: 1 s to 400 days, counted from the time when the message is due. It expires at the
                next whole minute after that.
            tag: A text to route the message by.
            headers: Further texts by name; together with the tag at most 1 MiB.
            group: The owner of the message, such as a customer: 1 to 128 ASCII letters, digits and
                punctuation. The consumer gets it back. It changes neither order nor delivery.
            message_id: A UUID or its text. Default: an id made of lane and number. Duplicates are
                allowed.
            dedup_key: A text of at most 1 KiB, if the queue has a ``dedup_window``. Within the
                window, a further put with the same key stores nothing, so a failed put can be
                retried.
            dedup_until: Until when the former put of the key stands for it: ``window``, for the
                whole window; ``acked``, until its message is acked, cancelled, expired or dead;
                ``leased``, while its message waits. With the last two, a put that is tried again
                after that stores another message.

        Returns:
            The message id, a text. Its ``duplicate`` says whether this key was put before; then it
            is the id of that message.

        Raises:
            BodyInvalid, OptionInvalid: An argument has a wrong form; nothing was written.
            PutAmbiguous: It is unknown whether the message will be delivered; the error names its
                id.
            QueueDeleted: The queue is gone.
            StoreError: The message was not stored.
        """
        ids = [message_id] if message_id is not None else None
        keys = [dedup_key] if dedup_key is not None else None
        where = Where(priority, key, delay, due_at)
        more: dict[str, object] = {"tag": tag, "headers": headers, "group": group}
        more |= {"message_ids": ids, "dedup_keys": keys, "dedup_until": dedup_until}
        lane = await self._current()
        put = await self._work.puts.put(lane, [body], where, ttl=ttl, **more)
        return put.results[0]

    @blocking
    async def put_many(
        self,
        /,
        bodies: Iterable[bytes],
        *,
        priority: int | Sequence[int] = 0,
        key: str | None = None,
        delay: Seconds | Sequence[Seconds] = 0,
        due_at: datetime | None = None,
        ttl: Seconds | None = None,
        tag: str | None = None,
        headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
        group: str | Sequence[str | None] | None = None,
        message_ids: Sequence[UUID | str | None] | None = None,
        dedup_keys: Sequence[str | None] | None = None,
        dedup_until: str = "window",
    ) -> list[PutResult]:
        """Put messages together: thousands cost a few rows and round trips. Not all or nothing.

        Singular arguments apply to every message. Priority, delay, headers and group may also be
        lists with an entry per message. Messages of one priority and delay are put together, part
        by part.

        Args:
            dedup_keys: An entry for each body; None for a message without a key. See `put`. Each
                key costs an LWT. Keys are also compared with each other.
            dedup_until: As for `put`, for all keys of the call.

        Returns:
            The message ids, in order; each says whether it was new, as that of `put`.

        Raises:
            PutAmbiguous: It is also raised if only a part is stored: ``stored`` names that part.
            BodyInvalid, OptionInvalid, QueueDeleted, StoreError: As `put`; nothing was stored.
        """
        where = Where(priority, key, delay, due_at, may_be_lists=True)
        more: dict[str, object] = {"tag": tag, "headers": headers, "group": group}
        more |= {"message_ids": message_ids, "dedup_keys": dedup_keys, "dedup_until": dedup_until}
        lane = await self._current()
        put = await self._work.puts.put(lane, bodies, where, ttl=ttl, **more)
        return put.results

    @blocking
    async def get(
        self,
        max_messages: int = 10,
        *,
        visibility_timeout: Seconds | None = None,
        wait: Seconds = 0,
        consumer: str | None = None,
        min_priority: int = 0,
    ) -> list[Delivery]:
        """Lease messages: no other consumer gets them before the visibility timeout is over.

        It costs one LWT per bucket, whatever the number: get and ack hundreds together if you can.

        Args:
            max_messages: The maximum. Fewer may come; the list is empty only if nothing is visible.
            visibility_timeout: 0.1 s to 30 days. Default: the queue's.
            wait: Seconds to wait for the first message.
            consumer: A name that ``stats`` shows. Default: host and process.
            min_priority: Get only messages of this priority or a higher one.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
            StoreError: Messages that were claimed become visible again after their timeout, or
                earlier.
        """
        most = arguments.count("max_messages", max_messages)
        lane = await self._current()
        asked = visibility_timeout, consumer, min_priority
        wanted = GetRequest.checked(lane.settings, most, *asked, wait=wait)
        caller.if_left(self._hand_back)
        return await tracing.received(self.name, self._work.waiting.get(lane, wanted))

    @blocking
    @tracing.settles("ack")
    async def ack(self, messages: Held | Iterable[Held]) -> None:
        """Ack messages: they are done, and never delivered again.

        A list costs one LWT per bucket. It is harmless to ack the same message again.

        Args:
            messages: A `Delivery`, its receipt, or a list of either.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            ReceiptExpired: Some deliveries had ended; the error names their receipts. The others
                are acked.
            StoreError: For some messages it is unknown whether they are acked. Ack again.
        """
        given = await self._checked(messages)
        await self._settle(await self._current(), given, ACK)

    @blocking
    @tracing.settles("ack_each")
    async def ack_each(self, messages: Iterable[Held]) -> list[AckResult]:
        """Ack as `ack` does, but return a verdict for each message, in order, instead of an error.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            QueueDeleted: The queue is gone.
        """
        given = await self._checked(messages)
        return (await settle.settle_receipts(await self._current(), given, ACK))[0]

    @blocking
    @tracing.settles("extend")
    async def extend(
        self, messages: Held | Iterable[Held], visibility_timeout: Seconds
    ) -> datetime:
        """Make leases end later, or sooner, counted from now. The receipts stay valid, but for 0.

        Args:
            visibility_timeout: 0 to 30 days. 0 ends the leases at once, and is the same call as
                `release(messages)`: the receipts become stale.

        Returns:
            The time when the leases end, UTC. They end a moment later if the store was slow.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was changed.
            ReceiptExpired: Some deliveries had ended; the error names their receipts. The others
                are extended.
        """
        duration_us = arguments.extension_us(visibility_timeout)
        given = await self._checked(messages)
        lane = await self._current()
        now_us = lane.clock.now_us()
        action = Extend(visibility_us=duration_us) if duration_us else Release()
        await self._settle(lane, given, action)
        return time_of(now_us + duration_us)

    @blocking
    @tracing.settles("release")
    async def release(
        self, messages: Held | Iterable[Held], *, delay: Seconds = 0, count_delivery: bool = True
    ) -> None:
        """Give messages back to all consumers, at once or after a delay. The receipts become stale.

        Args:
            count_delivery: Whether the delivery counts. Pass False only if no consumer saw the
                messages.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was changed.
            ReceiptExpired: Some deliveries had ended; the error names their receipts. The others
                are given back.
        """
        delay_us = arguments.delay_us(delay)
        given = await self._checked(messages)
        lane = await self._current()
        due_us = lane.clock.now_us() + delay_us if delay_us else None
        await self._settle(lane, given, Release(due_us=due_us, count_delivery=count_delivery))

    @blocking
    @tracing.settles("reject")
    async def reject(self, messages: Held | Iterable[Held], *, reason: str = "rejected") -> None:
        """Declare messages dead, whatever deliveries are left; repair moves them with the reason.

        Raises:
            OptionInvalid, ReceiptInvalid: Nothing was changed.
            UsageError: The queue has no dead-letter queue; nothing was changed.
            ReceiptExpired: Some deliveries had ended; the error names their receipts. The others
                are dead.
        """
        why = arguments.reason(reason)
        given = await self._checked(messages)
        await self._settle(await self._current(), given, Reject(reason=why))

    def process(
        self, message: Delivery, *, backoff: Backoff = DEFAULT_BACKOFF
    ) -> AbstractContextManager[object]:
        """Return a block in which a program works on a message; its lease is renewed meanwhile.

        At its end, the message is acked. After an error, it is given back with the delay of the
        backoff, or at once by a Ctrl-C, and the error goes on. `Retry` and `Reject` stay within.

        Raises:
            ReceiptInvalid, ReceiptExpired, StoreError: As `ack`, before the block or at its end.
        """
        self._receipts(message)
        keep = partial(Kept, self._lane, message, self.settings.visibility_timeout_s)
        return Processing(keep, partial(self._settled, message, backoff=backoff))

    @tracing.settles("process")
    async def _settled(self, message: Delivery, failure: Failure | None, backoff: Backoff) -> None:
        given, lane = self._receipts(message), await self._current()
        await self._settle(lane, given, settlement(lane, message, failure, backoff))

    _fail = blocking(_settled)

    @blocking
    @tracing.settles("cancel")
    async def cancel(self, message_id: UUID | str) -> bool:
        """Take back a message that no consumer was given yet, such as a scheduled one.

        Args:
            message_id: The id that `put` has returned, of a message whose producer chose no id.

        Returns:
            True if the message is cancelled, now or by an earlier call; no consumer was or will be
            given it. False if it is too late, or if this queue has made no such id.

        Raises:
            OptionInvalid: The id is not a UUID.
            StoreError: It is unknown whether the message is cancelled. Cancel again.
        """
        wanted = arguments.known_message_id(message_id)
        return await cancel(await self._current(), wanted)

    @blocking
    @tracing.settles("update")
    async def update(
        self,
        message: Delivery,
        *,
        body: bytes | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> Delivery:
        """Give a leased message another body, another timeout, or both.

        Delivery and count stay the same. The old receipt becomes stale, and the returned delivery
        has the new one.

        Args:
            body: Default: unchanged.
            visibility_timeout: Counted from now. Default: unchanged. 0 gives the message back, and
                the returned delivery has ended, as after `release`.

        Raises:
            BodyInvalid, OptionInvalid, ReceiptInvalid: Nothing was changed.
            ReceiptExpired: The delivery had ended; nothing was changed.
            UsageError: A Spark batch holds the message.
        """
        duration_us = (
            None if visibility_timeout is None else arguments.extension_us(visibility_timeout)
        )
        new_body = None if body is None else arguments.body(body)
        if not isinstance(message, Delivery):
            raise ReceiptInvalid(
                "update takes a Delivery, as get and update return it, not "
                f"{type(message).__name__}"
            )
        (receipt,) = self._receipts(message)
        lane = await self._current()
        lease = await settle.update(
            lane,
            receipt,
            body=new_body,
            visibility_us=duration_us or None,
            gives_back=duration_us == 0,
        )
        if duration_us == 0:
            self._work.waiting.look_soon()
        return updated(message, new_body, lease, lane.clock.now_us())

    def consumer(
        self,
        *,
        prefetch: int = 100,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        name: str | None = None,
        min_priority: int = 0,
    ) -> Consumer:
        """Return a `Consumer`: messages one at a time at the cost of batches, in a ``with`` block.

        Args:
            prefetch: The number of messages that may wait in this process. They are leased, so no
                other consumer gets them.
            visibility_timeout: As for `get`. At least half of it is left when a message is handed
                out, unless the store is slow.
            idle_timeout: Iteration ends when no message came for this long. Default: never.
            name: The consumer's name, as ``consumer`` of `get`.
            min_priority: As for `get`.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
        """
        ways = self._ways(prefetch, visibility_timeout, name, min_priority)
        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        return Consumer(ways, idle_timeout_s=idle_s)

    @blocking
    async def peek(self, max_messages: int = 10) -> list[Message]:
        """Show visible messages. They stay visible, and have no receipt.

        Raises:
            OptionInvalid, QueueDeleted: As `get`.
            StoreError: A part of the queue did not answer, and the rest has no visible message.
        """
        return await peek(await self._current(), arguments.count("max_messages", max_messages))

    @blocking
    async def stats(self) -> QueueStats:
        """Count the messages of the queue, with one read per bucket that repair has not dropped.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: A part of it did not answer: a count without that part would be wrong.
        """
        return await stats(await self._current())

    @blocking
    async def scheduled(self) -> list[ScheduledHour]:
        """Count messages that were put for much later and are not due yet, by hour and priority.

        It costs a read for each bucket of such messages, and a scan for each open one.

        Raises:
            QueueDeleted, StoreError: As `stats`.
        """
        return await by_hour(await self._current())

    @blocking
    async def pause(self, priority: int | None = None) -> None:
        """Hand out no more messages, until `resume`. Messages may still be put, acked and extended.

        A get that had claimed messages before may still return them. One that confirms its claims
        after this has returned gives them back. Consumers give back what they have prefetched
        within five seconds, and Spark's source waits. Clients of releases that know no pause do
        not heed it.

        Args:
            priority: Only messages of this priority; None: all.

        Raises:
            OptionInvalid: The queue has no such priority.
            QueueDeleted: The queue is gone.
            StoreError: Some messages may be paused. Call it again.
        """
        await self._change_pause(priority, pauses=True)

    @blocking
    async def resume(self, priority: int | None = None) -> None:
        """Hand out messages again after `pause`; nothing happens if the queue is not paused.

        Args:
            priority: Only messages of this priority; None: all.

        Raises:
            OptionInvalid, QueueDeleted: As `pause`.
            StoreError: Some messages may still be paused. Call it again.
        """
        await self._change_pause(priority, pauses=False)
        self._work.waiting.look_soon()

    @blocking
    async def paused(self) -> tuple[int, ...]:
        """Return the paused priorities, ascending; none if all messages are handed out.

        Raises:
            QueueDeleted: The queue is gone.
        """
        return await pause.paused(await self._current())

    @blocking
    async def purge(self) -> int:
        """Drop all messages: visible, leased, delayed and dead. Return their number.

        Raises:
            QueueDeleted: The queue is gone.
        """
        return await admin.purge(await self._current())

    @blocking
    async def delete(
        self, *, force: bool = False, if_empty: bool = False, if_unused: bool = False
    ) -> None:
        """Delete the queue with everything in it. Others that have it open get `QueueDeleted`.

        Args:
            force: Delete the queue even if other queues name it as their dead-letter queue. Repair
                cannot move their dead messages until they name another one.
            if_empty: Delete the queue only if it holds no message in any state.
            if_unused: Delete the queue only if no message is in flight. This and ``if_empty`` are
                checked just before the deletion: a message that is put in between is deleted, too.

        Raises:
            QueueNotFound: The queue is gone already. A later queue of the same name stays.
            QueueInUse: Something depends on the queue; nothing was deleted.
        """
        lane = self._lane
        only = {"force": force, "if_empty": if_empty, "if_unused": if_unused}
        await admin.delete(lane.store, lane.queue, lane.lane_id, **only)
        self._works.forget(lane.lane_id)

    async def _change_pause(self, priority: int | None, *, pauses: bool) -> None:
        lane = await self._current()
        if priority is not None:
            arguments.priority("priority", priority, lane.settings.priorities)
        await pause.change(lane, priority, pauses=pauses)

    async def _lapse(self, messages: Iterable[Delivery]) -> None:
        """End leases, but let their receipts ack until another consumer gets the messages.

        For the gateway; runs in the event loop.
        """
        action = Extend(visibility_us=-EXPIRY_MARGIN_US)
        given = await self._checked(messages)
        _, _, failure = await settle.settle_receipts(await self._current(), given, action)
        if failure is not None:
            raise failure
        self._work.waiting.look_soon()

    async def _settle(self, lane: Lane, given: list[Receipt], action: Action) -> None:
        verdicts, _, failure = await settle.settle_receipts(lane, given, action)
        if isinstance(action, Release) and action.due_us is None:
            self._work.waiting.look_soon()
        settle.check(lane, action, given, verdicts, failure)

    async def _checked(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        count = len(messages) if isinstance(messages, list | tuple) else 1
        return await caller.off_loop(partial(self._receipts, messages), entries=count)

    def _receipts(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        return settle.checked(self._lane, messages)

    def _ways(
        self, prefetch: int, visibility: Seconds | None, consumer: str | None, at_least: int
    ) -> ConsumerContext:
        def wanted(lane: Lane) -> GetRequest:
            most = arguments.count("prefetch", prefetch)
            return GetRequest.checked(lane.settings, most, visibility, consumer, at_least)

        return ConsumerContext(
            queue=self.name,
            lane=self._current,
            receipts=self._receipts,
            wanted=wanted,
            getter=self._work.waiting.getter,
        )

    async def _current(self) -> Lane:
        """Return the lane, with settings that are at most a few seconds old.

        Raises:
            ClientClosed: A call that waits would find out late, or not at all.
        """
        self._lane.store.session.check_open()
        now = self._lane.clock.monotonic()
        if now - self._looked_at > LOOK_AGAIN_S:
            seen_at, self._looked_at = self._looked_at, now  # for calls that come meanwhile
            try:
                self._lane = await refreshed(self._lane)
            except CassieqError as error:
                self._looked_at = seen_at
                if isinstance(error, QueueDeleted):
                    self._works.forget(self._lane.lane_id)
                raise
        return self._lane

    async def _hand_back(self, messages: list[Delivery]) -> None:
        await give_back(self._lane, self._receipts(messages))

    def __repr__(self) -> str:
        """Show the queue's name."""
        return f"Queue({self.name!r})"
