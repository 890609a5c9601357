"""`Settling` is the part of the public handle that says what became of messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from cassieq_spark import tracing
from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.settlement import Extend, Reject, Release
from cassieq_spark.options import arguments
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message, time_of
from cassieq_spark.queue.settle import acks, receipts, settle
from cassieq_spark.queue.settle.acks import Verdict
from cassieq_spark.queue.settle.cancel import cancel
from cassieq_spark.store import portal
from cassieq_spark.store.process import OfOneProcess

if TYPE_CHECKING:
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.settlement import Action
    from cassieq_spark.queue.work import Work

Seconds = float | timedelta
Held = Message | str


class Settling(OfOneProcess):
    """Ack, extend, release, reject and update what was got from one queue."""

    _known_lane: Lane
    if TYPE_CHECKING:
        _work: Work  # of a room above this one

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._known_lane.queue

    @property
    def _lane(self) -> Lane:
        """The lane, with settings that are at most a few seconds old."""
        raise NotImplementedError

    @tracing.settles("ack")
    def ack(self, messages: Held | Iterable[Held]) -> None:
        """Say that messages are done: they are never delivered again.

        A list costs one LWT per bucket. It is harmless to ack the same message again.

        Args:
            messages: A `Message`, its receipt, or a list of either.

        Raises:
            ReceiptInvalid: One is not a receipt of this queue; nothing was acked.
            ReceiptExpired: It names the receipts whose delivery had ended; the others are acked.
            StoreError: For some it is unknown whether they are acked. Ack again.
        """
        given = self._receipts(messages)
        verdicts, failure = portal.run(acks.ack(self._lane, given))
        if failure is not None:
            raise failure
        acks.check_verdicts(self._lane, given, verdicts)

    @tracing.settles("ack_each")
    def ack_each(self, messages: Iterable[Held]) -> list[Verdict]:
        """Ack as `ack` does, and return a verdict for each, in their order, instead of an error.

        Raises:
            ReceiptInvalid: One is not a receipt of this queue; nothing was acked.
            QueueDeleted: The queue is gone.
        """
        given = self._receipts(messages)
        verdicts, _ = portal.run(acks.ack(self._lane, given))
        return verdicts

    @tracing.settles("extend")
    def extend(self, messages: Held | Iterable[Held], visibility_timeout: Seconds) -> datetime:
        """Make leases end later, or sooner, counted from now. The receipts stay valid.

        Args:
            visibility_timeout: 0 to 30 days; 0 gives the messages back.

        Returns:
            When the leases end, UTC, or a moment later if the store was slow.

        Raises:
            ReceiptInvalid: One is not a receipt of this queue; nothing was changed.
            ReceiptExpired: It names those whose delivery had ended; the others are extended.
        """
        duration_us = arguments.extension_us(visibility_timeout)
        given = self._receipts(messages)
        lane = self._lane
        now_us = lane.clock.now_us()
        self._settle(lane, given, Extend(visibility_us=duration_us) if duration_us else Release())
        return time_of(now_us + duration_us)

    @tracing.settles("release")
    def release(
        self, messages: Held | Iterable[Held], *, delay: Seconds = 0, is_counted: bool = True
    ) -> None:
        """Give messages back for anybody, at once or after a delay. The receipts become stale.

        Args:
            is_counted: Whether the delivery counts. Say False only if nobody has seen the messages.

        Raises:
            ReceiptInvalid: One is not a receipt of this queue; nothing was changed.
            ReceiptExpired: It names those whose delivery had ended; the others are given back.
        """
        delay_us = arguments.delay_us(delay)
        given = self._receipts(messages)
        lane = self._lane
        due_us = lane.clock.now_us() + delay_us if delay_us else None
        self._settle(lane, given, Release(due_us=due_us, is_counted=is_counted))

    @tracing.settles("reject")
    def reject(self, messages: Held | Iterable[Held], *, reason: str = "rejected") -> None:
        """Declare messages dead, whatever deliveries are left; repair moves them with the reason.

        Raises:
            OptionInvalid, ReceiptInvalid: Nothing was changed.
            UsageError: The queue has no dead-letter queue; nothing was changed.
            ReceiptExpired: It names those whose delivery had ended; the others are dead.
        """
        why = arguments.reason(reason)
        given = self._receipts(messages)
        self._settle(self._lane, given, Reject(reason=why))

    @tracing.settles("cancel")
    def cancel(self, message_id: UUID | str) -> bool:
        """Take a message back that nobody was given yet, such as one that is scheduled.

        Args:
            message_id: As `put` has returned it, of a message whose producer chose no id.

        Returns:
            True: it is cancelled, now or by an earlier call, and nobody was or will be given it.
            False: it is too late, or this queue has made no such id.

        Raises:
            OptionInvalid: It is not a UUID.
            StoreError: It is unknown whether it is cancelled. Cancel again.
        """
        return portal.run(cancel(self._lane, arguments.known_message_id(message_id)))

    @tracing.settles("update")
    def update(
        self,
        message: Message,
        *,
        body: bytes | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> Message:
        """Give a leased message another body, another timeout, or both.

        Delivery and count stay the same. The old receipt becomes stale; the returned message has
        the new one.

        Args:
            body: Default: unchanged.
            visibility_timeout: Counted from now; default: unchanged. 0 gives the message back, and
                the returned one has no receipt.

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
        lease = portal.run(
            settle.update(
                lane,
                receipt,
                body=new_body,
                visibility_us=duration_us or None,
                gives_back=duration_us == 0,
            )
        )
        return message.updated(receipt, new_body, lease)

    def _settle(self, lane: Lane, given: list[Receipt], action: Action) -> None:
        refused, _ = portal.run(settle.settle_receipts(lane, given, action))
        if refused:
            raise settle.expired(lane, refused)

    def _receipts(self, messages: Held | Iterable[Held]) -> list[Receipt]:
        return receipts.checked(self._known_lane, messages)
