"""`Deleting` acks the receipts of all requests, those of one bucket together.

While one ack of a bucket is under way, others gather, and the next takes them all. Nobody waits for
the ack of a bucket that it did not ask about.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.server.groups import Groups
from cassieq_spark.server.settling import acks
from cassieq_spark.store.call import asked_now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context

    from cassieq_spark.model.ids import Place
    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.settle.acks import Verdict
    from cassieq_spark.server.backend import Backend

MOST_RECEIPTS: Final = 2_000
"""The most of one ack: their requests wait for all of it."""

_Key = tuple[str, "Place"]
"""The queue that was named, and the bucket that the receipts name."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Asked:
    """Receipts of one request, and the answer: one for each, or the error that is it for all.

    Attributes:
        context: What an ack sees of the request: the first one's.
    """

    receipts: list[str]
    answer: asyncio.Future[list[Verdict | ReceiptInvalid] | Exception]
    context: Context


class Deleting:
    """Acks for all requests of a process. For one event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._groups: Groups[_Key, _Asked] = Groups(_together, self._ack)

    async def ack(self, queue: str, receipts: Sequence[str]) -> list[Verdict | ReceiptInvalid]:
        """Ack receipts; return for each its verdict, or why it is no receipt of the queue.

        Raises:
            QueueNotFound: No queue has that name.
            CassieqError, Busy: The acks of a bucket failed; others may be done. Ask again.
        """
        found: dict[int, Verdict | ReceiptInvalid] = {}
        by_place: dict[Place, list[int]] = {}
        for at, text in enumerate(receipts):
            try:
                by_place.setdefault(Receipt.decode(text).place, []).append(at)
            except ReceiptInvalid as error:
                found[at] = error
        if not by_place:
            await self._backend.opened(queue)
        if len(by_place) == 1 and not found:
            return await self._ask((queue, next(iter(by_place))), list(receipts))
        answers = await asyncio.gather(
            *(
                self._ask((queue, place), [receipts[at] for at in places])
                for place, places in by_place.items()
            )
        )
        for places, answer in zip(by_place.values(), answers, strict=True):
            found.update(zip(places, answer, strict=True))
        return [found[at] for at in range(len(receipts))]

    async def close(self, within_s: float) -> None:
        """Begin no further ack, and wait so long for those under way."""
        await self._groups.close(within_s)

    async def _ask(self, key: _Key, receipts: list[str]) -> list[Verdict | ReceiptInvalid]:
        asked = _Asked(
            receipts=receipts,
            answer=asyncio.get_running_loop().create_future(),
            context=asked_now(),
        )
        self._groups.add(key, asked)
        # A client that goes away does not take back what others' receipts are acked with.
        found = await asyncio.shield(asked.answer)
        if isinstance(found, Exception):
            raise found
        return found

    async def _ack(self, key: _Key, together: list[_Asked]) -> None:
        receipts = [one for asked in together for one in asked.receipts]

        def ack(handle: Queue) -> list[Verdict | ReceiptInvalid]:
            return acks(receipts, handle)

        failure: Exception | None = None
        found: list[Verdict | ReceiptInvalid] = []
        try:
            found = await self._backend.on_queue(key[0], ack, together[0].context)
        except Exception as error:  # noqa: BLE001 - it is raised where the requests wait
            failure = error
        at = 0
        for asked in together:
            end = at + len(asked.receipts)
            if not asked.answer.done():
                asked.answer.set_result(found[at:end] if failure is None else failure)
            at = end


def _together(waiting: list[_Asked]) -> list[_Asked]:
    """Take what one ack may have, in the order in which it came."""
    found = [waiting.pop(0)]
    count = len(found[0].receipts)
    while waiting and (count := count + len(waiting[0].receipts)) <= MOST_RECEIPTS:
        found.append(waiting.pop(0))
    return found
