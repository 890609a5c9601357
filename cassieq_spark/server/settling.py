"""Settle several receipts of one request, with a verdict for each.

The client settles all of them together, by one LWT for each bucket. What it refuses as a whole is
told apart here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cassieq_spark.errors import ReceiptExpired, ReceiptInvalid, StoreError
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.settle.settle import NEVER, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cassieq_spark.aio.queue import AsyncQueue

T = TypeVar("T")

Failure = ReceiptExpired | ReceiptInvalid | StoreError | None
"""Why a receipt was not settled, or may not be; None: it is."""


async def each(
    receipts: Sequence[str], settle: Callable[[list[str]], Awaitable[Sequence[T]]]
) -> list[T | ReceiptInvalid]:
    """Settle receipts together; return for each what ``settle`` says, or why it is no receipt.

    Args:
        settle: Returns one answer for each receipt. It raises `ReceiptInvalid`, having done
            nothing, if one of them is of another queue.
    """
    found: dict[int, T | ReceiptInvalid] = {}
    for at, receipt in enumerate(receipts):
        try:
            Receipt.decode(receipt)
        except ReceiptInvalid as error:
            found[at] = error
    good = [at for at in range(len(receipts)) if at not in found]
    answers = await _together([receipts[at] for at in good], settle)
    found.update(zip(good, answers, strict=True))
    return [found[at] for at in range(len(receipts))]


async def acks(receipts: Sequence[str], queue: AsyncQueue) -> list[Verdict | ReceiptInvalid]:
    """Ack receipts together; return for each its verdict, or why it is no receipt of the queue."""
    never = ReceiptInvalid(f"a receipt {NEVER}. Pass what a get of this queue returned")
    found = await each(receipts, queue.ack_each)
    return [never if one is Verdict.INVALID else one for one in found]


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


async def _together(
    receipts: list[str], settle: Callable[[list[str]], Awaitable[Sequence[T]]]
) -> list[T | ReceiptInvalid]:
    if not receipts:
        return []
    try:
        return list(await settle(receipts))
    except ReceiptInvalid as error:
        if len(receipts) == 1:
            return [error]
    return [answer for one in receipts for answer in await _together([one], settle)]
