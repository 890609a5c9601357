"""`Settling` is the part of the public handle that settles messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from cassieq_spark import tracing
from cassieq_spark.doors import blocking
from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.lease import EXPIRY_MARGIN_US
from cassieq_spark.model.settlement import Extend, Reject, Release
from cassieq_spark.options import arguments
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message, time_of
from cassieq_spark.queue.settle import acks, receipts, settle
from cassieq_spark.queue.settle.acks import Verdict
from cassieq_spark.queue.settle.cancel import cancel
from cassieq_spark.store import caller
from cassieq_spark.store.process import OfOneProcess

if TYPE_CHECKING:
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.settlement import Action
    from cassieq_spark.queue.work import Work

Seconds = float | timedelta
Held = Message | str


class Settling(OfOneProcess):
    """Ack, extend, release, reject and update messages that were got from one queue."""

    _lane: Lane
    if TYPE_CHECKING:
        _work: Work  # `Work` is in a module that imports this one

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._lane.queue

    async def _current(self) -> Lane:
        """Return the lane, with settings that are at most a few seconds old."""
        raise NotImplementedError

    @blocking
    @tracing.settles("ack")
    async def ack(self, messages: Held | Iterable[Held]) -> None:
        """Ack messages: they are done, and never delivered again.

        A list costs one LWT per bucket. It is harmless to ack the same message again.

        Args:
            messages: A `Message`, its receipt, or a list of either.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            ReceiptExpired: Some deliveries had ended; the error names their receipts. The others
                are acked.
            StoreError: For some messages it is unknown whether they are acked. Ack again.
        """
        given = await self._checked(messages)
        verdicts, failure = await acks.ack(await self._current(), given)
        if failure is not None:
            raise failure
        acks.check_verdicts(await self._current(), given, verdicts)

    @blocking
    @tracing.settles("ack_each")
    async def ack_each(self, messages: Iterable[Held]) -> list[Verdict]:
        """Ack as `ack` does, but return a verdict for each message, in order, instead of an error.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            QueueDeleted: The queue is gone.
        """
        given = await self._checked(messages)
        verdicts, _ = await acks.ack(await self._current(), given)
        return verdicts

    @blocking
    @tracing.settles("extend")
    async def extend(
        self, messages: Held | Iterable[Held], visibility_timeout: Seconds
    ) -> datetime:
        """Make leases end later, or sooner, counted from now. The receipts stay valid.

        Args:
            visibility_timeout: 0 to 30 days; 0 gives the messages back.

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
        await self._settle(
            lane, given, Extend(visibility_us=duration_us) if duration_us else Release()
        )
        return time_of(now_us + duration_us)

    @blocking
    @tracing.settles("release")
    async def release(
        self, messages: Held | Iterable[Held], *, delay: Seconds = 0, is_counted: bool = True
    ) -> None:
        """Give messages back to all consumers, at once or after a delay. The receipts become stale.

        Args:
            is_counted: Whether the delivery counts. Pass False only if no consumer saw the
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
        await self._settle(lane, given, Release(due_us=due_us, is_counted=is_counted))

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
        message: Message,
        *,
        body: bytes | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> Message:
        """Give a leased message another body, another timeout, or both.

        Delivery and count stay the same. The old receipt becomes stale, and the returned message
        has the new one.

        Args:
            body: Default: unchanged.
            visibility_timeout: Counted from now. Default: unchanged. 0 gives the message back, and
                the returned message has no receipt.

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
        return message.updated(receipt, new_body, lease)

    async def _lapse(self, messages: Iterable[Message]) -> None:
        """End leases, but let their receipts ack until another consumer gets the messages.

        For the gateway; runs in the event loop.
        """
        action = Extend(visibility_us=-EXPIRY_MARGIN_US)
        await settle.settle_receipts(await self._current(), await self._checked(messages), action)
        self._work.waiting.look_soon()

    async def _settle(self, lane: Lane, given: list[Receipt], action: Action) -> None:
        refused, _ = await settle.settle_receipts(lane, given, action)
        if isinstance(action, Release) and action.due_us is None:
            self._work.waiting.look_soon()
        if refused:
            raise settle.expired(lane, refused)

    async def _checked(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        count = len(messages) if isinstance(messages, list | tuple) else 1
        return await caller.off_loop(partial(self._receipts, messages), entries=count)

    def _receipts(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        return receipts.checked(self._lane, messages)
