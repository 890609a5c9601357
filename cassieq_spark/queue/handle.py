"""`Queue` is the public handle of a queue: it checks arguments and delegates; it has no rules."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, overload
from uuid import UUID

from cassieq_spark import tracing
from cassieq_spark.errors import QueueDeleted
from cassieq_spark.model.frozen import FrozenDict
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.settlement import Release
from cassieq_spark.options import QueueSettings, arguments
from cassieq_spark.queue import admin, guards
from cassieq_spark.queue.consumer import Consumer, Ways
from cassieq_spark.queue.find import look_again
from cassieq_spark.queue.inspect.hours import ScheduledHour, by_hour
from cassieq_spark.queue.inspect.stats import QueueStats, stats
from cassieq_spark.queue.inspect.visible import peek
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message, time_of
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.results import PutResult, Puts
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.queue.settling import Settling
from cassieq_spark.queue.work import Where, Work
from cassieq_spark.recent import Recent
from cassieq_spark.store import portal

Seconds = float | timedelta

LOOK_AGAIN_S: Final = 5.0
"""How often a handle reads its queue's row: it sees changes and a deletion within 10 s."""


class Queue(Settling):
    """One queue. Threads may share the handle; it does not pickle."""

    def __init__(self, lane: Lane, works: Recent[LaneId, Work]) -> None:
        self._known_lane = lane
        # A lane's handles share one producer, which fills its own bucket [P15].
        self._work = works.get_or_make(lane.lane_id, Work)
        self._works = works
        self._looked_at = lane.clock.monotonic()
        self._looking = threading.Lock()

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, at most a few seconds old while the queue is used."""
        return self._known_lane.settings

    @property
    def labels(self) -> Mapping[str, str]:
        """The queue's labels, as old as its settings; see `Client.label_queue`."""
        return FrozenDict(self._known_lane.labels)

    @property
    def created_at(self) -> datetime:
        """When the queue was created, UTC."""
        return time_of(self._known_lane.created_us)

    def put(
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
    ) -> str:
        """Put one message. When this returns, it is delivered until it is acked or expires.

        Args:
            body: 0 B to 16 MiB.
            priority: 0 to one less than the queue's ``priorities``; a higher one goes first.
            key: A text of at most 1 KiB. A producer's messages of one key stay in order.
            delay: Seconds or timedelta, up to 400 days, during which nobody gets it.
            due_at: In its place, a time with a time zone before which nobody gets it.
            ttl: 1 s to 400 days from when it is due; then, at the next whole minute, it expires.
            tag: A text to route the message by.
            headers: Further texts by name; with the tag at most 1 MiB.
            group: Whose message it is, such as a customer: 1 to 128 ASCII letters, digits and
                punctuation. It is given back, and changes neither order nor delivery.
            message_id: A UUID or its text; default: one made of lane and id. None are compared.
            dedup_key: A text of at most 1 KiB, if the queue has a ``dedup_window``. Within it, a
                further put of the key stores nothing. So a put that failed can be put again.

        Returns:
            The message id: of the first message that was put with this key, if there is one.

        Raises:
            BodyInvalid, OptionInvalid: An argument has a wrong form; nothing was written.
            PutAmbiguous: It is unknown whether it will be delivered; the error names the id.
            QueueDeleted: The queue is gone.
            StoreError: It was not stored.
        """
        ids = [message_id] if message_id is not None else None
        keys = [dedup_key] if dedup_key is not None else None
        where = Where(priority, key, delay, due_at)
        more = {"tag": tag, "headers": headers, "group": group, "message_ids": ids}
        return self._put(where, [body], ttl=ttl, dedup_keys=keys, **more).message_ids[0]

    @overload
    def put_many(
        self,
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
        dedup_keys: None = None,
    ) -> list[str]: ...

    @overload
    def put_many(
        self,
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
        dedup_keys: Sequence[str | None],
    ) -> list[PutResult]: ...

    def put_many(
        self,
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
    ) -> list[str] | list[PutResult]:
        """Put messages together: a few rows and round trips for thousands. Not all or nothing.

        Arguments without an s are the same for all; so are priority, delay, headers and group,
        unless they are a list. Messages of one priority and delay are put together, one such part
        after another.

        Args:
            dedup_keys: An entry for each body, None for one without a key; see `put`. They cost an
                LWT each, and are compared among themselves, too.

        Returns:
            Their message ids, in order; with ``dedup_keys`` `PutResult`s, which say what was new.

        Raises:
            PutAmbiguous: Also raised when only a part is stored: ``stored`` names that part.
            BodyInvalid, OptionInvalid, QueueDeleted, StoreError: As `put`; nothing was stored.
        """
        where = Where(priority, key, delay, due_at, may_be_lists=True)
        more = {"tag": tag, "headers": headers, "group": group, "message_ids": message_ids}
        put = self._put(where, bodies, ttl=ttl, dedup_keys=dedup_keys, **more)
        return put.message_ids if dedup_keys is None else put.each

    def get(
        self,
        max_messages: int = 10,
        *,
        visibility_timeout: Seconds | None = None,
        wait: Seconds = 0,
        consumer: str | None = None,
        priority_at_least: int = 0,
    ) -> list[Message]:
        """Lease messages: nobody else gets them before the visibility timeout is over.

        One LWT per bucket, whatever the number: get and ack hundreds together if you can.

        Args:
            max_messages: The limit. Fewer may come, but never none while one is visible.
            visibility_timeout: 0.1 s to 30 days; default: the queue's.
            wait: Seconds to wait for the first message.
            consumer: A name that ``stats`` shows; default: host and process.
            priority_at_least: Only messages of this priority and higher ones.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
            StoreError: What was claimed becomes visible again after its timeout, or earlier.
        """
        at_most = arguments.count("max_messages", max_messages)
        wanted = self._work.request(
            self._lane.settings,
            at_most=at_most,
            visibility=visibility_timeout,
            wait=wait,
            consumer=consumer,
            at_least=priority_at_least,
        )
        lane, getter = self._lane, self._work.getter

        async def hand_back(messages: list[Message]) -> None:
            receipts = self._receipts(messages)
            await settle_in_background("release", lane, receipts, Release(is_counted=False))

        return tracing.received(
            self.name, lambda: portal.run(getter.get(lane, wanted), left=hand_back)
        )

    def consumer(
        self,
        *,
        prefetch: int = 100,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        consumer: str | None = None,
        priority_at_least: int = 0,
    ) -> Consumer:
        """Return a `Consumer`: messages one at a time for the price of many, in a ``with`` block.

        Args:
            prefetch: How many messages may wait here, leased, so that nobody else gets them.
            visibility_timeout: As for `get`; at least half of it is left when a message is handed
                out, unless the store is slow.
            idle_timeout: Iteration ends when no message came for this long; default: never.
            consumer, priority_at_least: As for `get`.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
        """
        ways = Ways(
            lane=lambda: self._lane,
            receipts=self._receipts,
            wanted=self._work.request(
                self._lane.settings,
                at_most=arguments.count("prefetch", prefetch),
                visibility=visibility_timeout,
                wait=0,
                consumer=consumer,
                at_least=priority_at_least,
            ),
            getter=self._work.getter,
        )
        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        return Consumer(ways, idle_timeout_s=idle_s)

    def peek(self, max_messages: int = 10) -> list[Message]:
        """Look at visible messages. They stay visible, and have no receipt.

        Raises:
            OptionInvalid, QueueDeleted: As `get`.
            StoreError: A part of the queue did not answer, and the rest has no visible message.
        """
        return portal.run(peek(self._lane, arguments.count("max_messages", max_messages)))

    def stats(self) -> QueueStats:
        """Count what is in the queue: one read per bucket that repair has not dropped.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: A part of it did not answer: a count without that part would be wrong.
        """
        return portal.run(stats(self._lane))

    def scheduled(self) -> list[ScheduledHour]:
        """Count what was put with a time much later and is not due yet, by hour and priority.

        It costs a read for each bucket of such messages, and a scan for each open one.

        Raises:
            QueueDeleted, StoreError: As `stats`.
        """
        return portal.run(by_hour(self._lane))

    def purge(self) -> int:
        """Drop all messages: visible, leased, delayed and dead. Return how many.

        Raises:
            QueueDeleted: The queue is gone.
        """
        return portal.run(admin.purge(self._lane))

    def delete(
        self, *, force: bool = False, if_empty: bool = False, if_unused: bool = False
    ) -> None:
        """Delete the queue with everything in it. Others that have it open get `QueueDeleted`.

        Args:
            force: Delete it although queues name it as their dead-letter queue. Repair cannot move
                their dead messages until they name another one.
            if_empty: Delete it only if it holds no message, of whatever state.
            if_unused: Delete it only if no message is in flight. This and ``if_empty`` are checked
                just before the deletion: a message that is put meanwhile is deleted, too.

        Raises:
            QueueNotFound: It is gone already. A queue created since under its name stays.
            QueueInUse: Something depends on it; nothing was deleted.
        """
        lane = self._known_lane
        portal.run(
            guards.delete(
                *(lane.store, lane.queue, lane.lane_id),
                force=force,
                if_empty=if_empty,
                if_unused=if_unused,
            )
        )
        self._works.forget(lane.lane_id)

    @property
    def _lane(self) -> Lane:
        """The lane, with settings that are at most a few seconds old."""
        now = self._known_lane.clock.monotonic()
        if now - self._looked_at > LOOK_AGAIN_S and self._looking.acquire(blocking=False):
            try:
                self._known_lane = portal.run(look_again(self._known_lane))
                self._looked_at = now
            except QueueDeleted:
                self._works.forget(self._known_lane.lane_id)
                raise
            finally:
                self._looking.release()
        return self._known_lane

    def _put(
        self,
        where: Where,
        bodies: Iterable[object],
        *,
        ttl: object,
        dedup_keys: object,
        **more: object,
    ) -> Puts:
        lane = self._lane
        rows = encode.messages(bodies, **more)
        parts = self._work.parts(lane, where, len(rows))
        ttl_us = arguments.ttl_us(ttl)
        window_s = lane.settings.dedup_window_s
        keys = arguments.dedup_keys(dedup_keys, len(rows), window_s=window_s)
        if not rows:
            return Puts([])
        call = lane.store.session.call()
        with tracing.sending(self.name, [row.headers for row in rows]) as context, call:
            if context:
                rows = [encode.with_context(row, context) for row in rows]
            return portal.run(self._work.put(parts, rows, ttl_us=ttl_us, keys=keys))

    def __repr__(self) -> str:
        """Show the queue's name."""
        return f"Queue({self.name!r})"
