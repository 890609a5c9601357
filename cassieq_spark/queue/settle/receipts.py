"""Check the receipts that a user passes, all of them before the first is used (I3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.options import arguments
from cassieq_spark.queue.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cassieq_spark.model.lanes import Fixed
    from cassieq_spark.queue.lane import Lane

NEVER: Final = "names messages that never existed"


def checked(lane: Lane, messages: Message | str | Iterable[Message | str]) -> list[Receipt]:
    """Return the receipts of a message, a receipt, or a list of either, in order.

    Raises:
        ReceiptInvalid: An entry is malformed, or belongs to another queue.
    """
    if isinstance(messages, Message | str):
        return [_checked(lane, lane.fixed, messages)]
    several = arguments.listed(messages)
    if several is None:
        raise ReceiptInvalid(
            f"{type(messages).__name__} is not a message, a receipt or a list of them. Nothing "
            "was done. Pass what get returned, or list(...) of it"
        )
    fixed = lane.fixed
    return [_checked(lane, fixed, one) for one in several]


def foreign(
    lane: Lane,
    why: str,
    *,
    refused: Iterable[Receipt] = (),
    expired: Iterable[Receipt] = (),
) -> ReceiptInvalid:
    """Make the error for a receipt that is well-formed but not of this queue."""
    return ReceiptInvalid(
        f"a message or receipt given to queue {lane.queue!r} {why}. Pass what this queue's get "
        "returned",
        refused=tuple(one.encode() for one in refused),
        expired=tuple(one.encode() for one in expired),
    )


def _checked(lane: Lane, fixed: Fixed, held: object) -> Receipt:
    if isinstance(held, Message):
        if not isinstance(held.proof, Receipt):
            raise foreign(lane, "has no receipt: it was only looked at, or was given back")
        receipt = held.proof
    else:
        receipt = Receipt.decode(held)
    if not fixed.has(receipt.lane):
        raise foreign(lane, "is of another queue, or of an earlier queue of this name")
    if not receipt.first <= receipt.last < lane.bucket_size or receipt.bucket >= DELETED:
        raise foreign(lane, NEVER)
    return receipt
