"""`Consumer` gives messages one by one at the cost of batches: prefetch and grouped acks.

It belongs to the blocking API. `Ahead` does the work, in the engine's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Self

from cassieq_spark.errors import UsageError
from cassieq_spark.options import arguments
from cassieq_spark.queue.ahead import Ahead, ConsumerContext
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.shelf import doors
from cassieq_spark.store import portal
from cassieq_spark.store.process import OfOneProcess


class Consumer(OfOneProcess):
    """Messages of one queue, prefetched and acked in groups. Threads may share it.

    Use it in a ``with`` block. At its end, acks are stored, and messages that were prefetched and
    not handed out are given back, uncounted.
    """

    def __init__(self, ways: ConsumerContext, *, idle_timeout_s: float | None) -> None:
        self._ways = ways
        self._idle_timeout_s = idle_timeout_s
        self._ahead = Ahead(ways, portal.run(ways.lane()))
        self._is_started = False

    @property
    def stale(self) -> int:
        """The number of acks that changed nothing: they came too late, or named no real message."""
        return self._ahead.acks.stale

    def get(self, wait: float | timedelta | None = None) -> Message | None:
        """Return the next message.

        Args:
            wait: Seconds to wait for one; None waits as long as it takes.

        Returns:
            None if no message came, or the consumer was closed.

        Raises:
            QueueDeleted: The queue is gone.
            CassieqError: A get failed, or acks could not be stored. The consumer retries by itself.
            UsageError: The consumer is not in its ``with`` block.
        """
        return self._get(None if wait is None else arguments.wait_s(wait))

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until none came for ``idle_timeout``, or the consumer was closed."""
        while (message := self._get(self._idle_timeout_s)) is not None:
            yield message

    def ack(self, messages: Message | str | Iterable[Message | str]) -> None:
        """Mark messages as done. Returns at once; acks are stored within a tenth of a second.

        The messages come again if this process dies before that, or if their lease had ended.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            UsageError: The consumer is closed.
        """
        self._ahead.home.check()
        self._ahead.acks.add(self._ways.receipts(messages))

    def flush(self) -> None:
        """Wait until every ack so far is stored.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: For some acks it is unknown whether they are stored; they are retried.
        """
        self._ahead.home.check()
        portal.run(self._ahead.acks.flush())

    def close(self) -> None:
        """Store the acks, and give back messages that were not handed out. Idempotent.

        It takes `CLOSE_S` at most. A get that is still running ends by itself, and gives back what
        it found.

        Raises:
            StoreError: Acks or releases failed. The messages come back when their leases run out.
        """
        if not self._ahead.home.is_here:
            return  # a forked child: the parent does what is left to do
        if portal.is_here() or doors.is_mine:
            portal.apart(self.close)  # an unfinished iteration, collected as garbage
        else:
            portal.run(self._ahead.close())

    def __enter__(self) -> Self:
        """Start to get messages.

        Raises:
            UsageError: The consumer was entered before.
        """
        if self._is_started:
            raise UsageError(
                "a consumer works in one block only. Make another one with queue.consumer()"
            )
        self._is_started = True
        self._ahead.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close; see `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Consumer({self._ways.queue!r})"

    def _get(self, wait_s: float | None) -> Message | None:
        if not self._is_started:
            raise UsageError(
                "a consumer works only inside its block. Write: with queue.consumer() as "
                "consumer: ..."
            )
        self._ahead.home.check()
        shelf, clock = self._ahead.shelf, self._ahead.home
        if (held := shelf.take()) is not None:
            return held.message
        deadline = None if wait_s is None else clock.monotonic() + wait_s
        while True:
            with shelf.asking() as ticket:
                if not ticket.done():
                    left_s = None if deadline is None else max(0.0, deadline - clock.monotonic())
                    ticket.wait(left_s)
                    shelf.look_for(ticket)
                held = ticket.result()
            if held is None or shelf.taken(held):
                return None if held is None else held.message
