"""Put messages and settle receipts of one request, with an answer for each.

Messages that have much in common are put together. The client settles all receipts together, by
one LWT for each bucket; what it refuses as a whole is told apart here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import PutAmbiguous, ReceiptExpired, ReceiptInvalid, StoreError
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.queue.settle.settle import NEVER, AckResult
from cassieq_spark.server.backend import Backend

T = TypeVar("T")

Failure = ReceiptExpired | ReceiptInvalid | StoreError | None
"""The reason why a receipt was not settled, or may not be; None: it is."""


class Common(NamedTuple):
    """Arguments of `Queue.put` that messages must have in common to be put together."""

    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    due_at: datetime | None = None
    ttl: float | None = None
    tag: str | None = None
    dedup_until: str = "window"


_NOTHING: Final = Common()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to put, with the arguments of `Queue.put`.

    Attributes:
        message_id: None: a new one.
    """

    body: bytes
    headers: Mapping[str, str]
    common: Common = _NOTHING
    message_id: str | None = None
    dedup_key: str | None = None
    group: str | None = None


async def put(
    backend: Backend, queue: str, messages: Sequence[Outgoing]
) -> list[PutResult | Exception]:
    """Put messages; return for each its result, or the error that kept it out.

    Those that differ in anything that `Common` has go side by side.
    """
    by_common: dict[Common, list[int]] = {}
    for at, message in enumerate(messages):
        by_common.setdefault(message.common, []).append(at)
    if len(by_common) == 1:  # as usual, and then no further task is needed
        return await _together(backend, queue, messages[0].common, messages)
    answers = await asyncio.gather(
        *(
            _together(backend, queue, common, [messages[at] for at in places])
            for common, places in by_common.items()
        )
    )
    found: dict[int, PutResult | Exception] = {}
    for places, answer in zip(by_common.values(), answers, strict=True):
        found.update(zip(places, answer, strict=True))
    return [found[at] for at in range(len(messages))]


def check_any(found: Sequence[PutResult | Exception]) -> None:
    """Raise what has befallen all messages: it is the request that fails, not a message."""
    first = found[0]
    if not isinstance(first, Exception) or len({type(one) for one in found}) > 1:
        return
    if isinstance(first, PutAmbiguous):
        # Those that were put together have one error, which names these alone.
        unknown = [one.message_ids for one in dict.fromkeys(found) if isinstance(one, PutAmbiguous)]
        raise PutAmbiguous(first.message, message_ids=tuple(chain.from_iterable(unknown)))
    raise first


async def _together(
    backend: Backend, queue: str, common: Common, messages: Sequence[Outgoing]
) -> list[PutResult | Exception]:
    ids = [one.message_id or str(new_uuid()) for one in messages]
    groups = [one.group for one in messages]

    async def put_many(handle: AsyncQueue) -> list[PutResult]:
        return await handle.put_many(
            [one.body for one in messages],
            headers=[one.headers for one in messages],
            group=groups if any(groups) else None,
            message_ids=ids,
            dedup_keys=[one.dedup_key for one in messages],
            **common._asdict(),
        )

    try:
        return list(await backend.on_queue(queue, put_many))
    except PutAmbiguous as error:
        return _results(ids, error)
    except Exception as error:  # noqa: BLE001 - each message has its own answer
        return [error] * len(messages)


def _results(ids: list[str], error: PutAmbiguous) -> list[PutResult | Exception]:
    """Return the result of each put of a call that failed: the error names the ids.

    Senders may choose the same id several times. It is stored if it is as often as it was put.
    """
    unstored = Counter(ids) - Counter(error.stored)
    unknown = (*error.message_ids, *(one for one in unstored if one in error.stored))
    mine = PutAmbiguous(error.message, message_ids=unknown, stored=error.stored)
    return [mine if one in unstored else PutResult(one) for one in ids]


async def each(
    receipts: Sequence[str], settle: Callable[[list[str]], Awaitable[Sequence[T]]]
) -> list[T | ReceiptInvalid]:
    """Settle receipts together; return for each what ``settle`` says, or why it is no receipt.

    Args:
        settle: Returns one answer for each receipt. It raises `ReceiptInvalid`, having done
            nothing, if one of them is of another queue.
    """
    wrong: dict[str, ReceiptInvalid] = {}
    for receipt in receipts:
        try:
            Receipt.decode(receipt)
        except ReceiptInvalid as error:
            wrong[receipt] = error
    answers = iter(await _settled([one for one in receipts if one not in wrong], settle))
    return [wrong[one] if one in wrong else next(answers) for one in receipts]


async def acks(receipts: Sequence[str], queue: AsyncQueue) -> list[AckResult | ReceiptInvalid]:
    """Ack receipts together; return for each its verdict, or why it is no receipt of the queue."""
    never = ReceiptInvalid(f"a receipt {NEVER}. Pass what a get of this queue returned")
    found = await each(receipts, queue.ack_each)
    return [never if one is AckResult.INVALID else one for one in found]


async def failures(
    receipts: list[str], settle: Callable[[list[str]], Awaitable[object]]
) -> list[Failure]:
    """Settle receipts together; return for each what kept it. Of a `StoreError` it is unknown."""
    try:
        await settle(receipts)
    except ReceiptExpired as error:
        return [error if one in error.refused else None for one in receipts]
    except ReceiptInvalid as error:
        if not error.refused:
            raise
        late = ReceiptExpired(error.message, refused=error.expired)
        told = dict.fromkeys(error.refused, error) | dict.fromkeys(error.expired, late)
        return [told.get(one) for one in receipts]
    except StoreError as error:
        return [error for _ in receipts]
    return [None for _ in receipts]


async def _settled(
    receipts: list[str], settle: Callable[[list[str]], Awaitable[Sequence[T]]]
) -> list[T | ReceiptInvalid]:
    if not receipts:
        return []
    try:
        return list(await settle(receipts))
    except ReceiptInvalid as error:
        if len(receipts) == 1:
            return [error]
    return [answer for one in receipts for answer in await _settled([one], settle)]
