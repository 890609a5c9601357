"""What a holder does with a delivery besides ack: extend, release, update, by receipt (design 5).

One CAS a bucket for any number of receipts; a receipt whose delivery ended changes nothing (I3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import new_revision, new_uuid
from cassieq_spark.errors import CassieqError, ReceiptExpired, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import lease as rules
from cassieq_spark.model.ids import Runs, union
from cassieq_spark.queue.apart import each_bucket
from cassieq_spark.queue.returns import Returns, moved_times_us
from cassieq_spark.queue.verdict import by_lease, held_runs, is_held, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket, Lease
    from cassieq_spark.model.ids import BucketNo, Runs
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane

    Move = Callable[[Bucket, Mapping[UUID, Runs | None], int], Bucket]

DROP_BODY_S: Final = 2.0
"""So long a body is tried to be dropped: closing the client waits for it."""

_logger = get_logger("queue")


def extend(
    lane: Lane, receipts: Iterable[Receipt], *, visibility_us: int, never_sooner: bool = False
) -> list[Receipt]:
    """Let messages come back so long after the CAS is sent; the receipts stay good.

    Args:
        never_sooner: What is held for longer already stays so.

    Returns:
        Those refused: their delivery has ended.
    """

    def move(row: Bucket, leases: Mapping[UUID, Runs | None], now_us: int) -> Bucket:
        # From now, and not from the call: the row may have waited for an outage (I2).
        until_us = now_us + visibility_us
        return rules.extend(
            row, leases, until_us=until_us, now_us=now_us, never_sooner=never_sooner
        )

    return _each_bucket(lane, receipts, move)


def release(
    lane: Lane, receipts: Iterable[Receipt], *, due_us: int | None = None, is_counted: bool = True
) -> list[Receipt]:
    """Give messages back, not before ``due_us`` if that is given; the receipts are stale then.

    Returns:
        Those refused: their delivery has ended.
    """

    def move(row: Bucket, leases: Mapping[UUID, Runs | None], now_us: int) -> Bucket:
        return rules.release(row, leases, now_us=now_us, due_us=due_us, is_counted=is_counted)

    return _each_bucket(lane, receipts, move)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What an update made of a delivery.

    Attributes:
        lease: The message's own from now on; None: it was given back.
    """

    lease: Lease | None


def update(
    lane: Lane, receipt: Receipt, *, body: bytes | None, visibility_us: int | None, gives_back: bool
) -> Updated:
    """Give a held message another body or end, and a new lease id.

    The body is stored first, under a revision that nobody else draws; the CAS that names it is the
    moment of change [P26]. The body that it replaces goes then: a message may be updated for a
    month, and its bucket's partition would grow all the while.

    Args:
        visibility_us: From when the CAS is sent; None: the end stays.
        gives_back: The message is visible again, to anybody, at once.

    Raises:
        ReceiptExpired: The delivery has ended.
        UsageError: A Spark batch holds the message: what it reads must stay the same (I8).
    """
    revision = None
    if body is not None:
        # Before anything is written: most stale receipts are found here.
        row = lane.store.buckets.read(lane.lane_id, receipt.bucket)
        _check_held(lane, None if row is None else row.value, receipt)
        revision = new_revision()
        lane.store.overlays.write(lane.lane_id, receipt.bucket, receipt.first, revision, body)
    new_id = new_uuid()
    made: Lease | None = None
    replaced: int | None = None
    returns = Returns(lane, receipt.bucket)

    def change(row: Bucket) -> Bucket | None:
        nonlocal made, replaced
        if row.lease(new_id) is not None or (
            revision is not None and (receipt.first, revision) in row.revisions
        ):
            return None
        _check_held(lane, row, receipt)
        now_us = lane.clock.now_us()
        new = rules.revise(
            row,
            receipt.lease_id,
            receipt.first,
            revision=revision,
            new_lease_id=new_id,
            until_us=None if visibility_us is None else now_us + visibility_us,
            now_us=now_us,
        )
        made = new.lease(new_id)
        replaced = dict(row.revisions).get(receipt.first)
        if gives_back:
            new = rules.release(new, {new_id: None}, now_us=now_us)
        returns.hint(moved_times_us(row, new, runs_of(receipt)))
        return new

    try:
        now = lane.change_bucket(receipt.bucket, change)
        if now is None:
            raise expired(lane, [receipt])
    except ReceiptExpired:
        # The row has changed since any CAS of ours was sent: none will name this body any more.
        _drop_body(lane, receipt, revision)
        raise
    returns.confirm()
    if revision is not None:
        _drop_body(lane, receipt, replaced)
    # The row is as others have left it, where an answer was lost: the lease may have run out and be
    # somebody's next delivery. Then the update has happened, and its receipt is stale.
    return Updated(lease=None if gives_back else now.value.lease(new_id) or made)


def _drop_body(lane: Lane, receipt: Receipt, revision: int | None) -> None:
    """Politeness, behind the caller's back: its lease runs. One that stays goes with its bucket."""
    if revision is None:
        return

    def drop(revision: int) -> None:
        try:
            lane.store.overlays.drop_one(lane.lane_id, receipt.bucket, receipt.first, revision)
        except CassieqError as error:
            event(
                _logger,
                "bucket_unreachable",
                queue=lane.queue,
                bucket=receipt.bucket,
                error=str(error),
            )

    session = lane.store.session
    with session.within(DROP_BODY_S):
        session.begin(drop, revision)


def expired(lane: Lane, refused: Sequence[Receipt]) -> ReceiptExpired:
    """The error that names receipts whose delivery has ended."""
    # No word about what comes next: that a message is in nobody's hands is also what the row of one
    # that was acked says, and no row at all what is left of a bucket that was dropped (G5).
    return ReceiptExpired(
        f"{len(refused)} receipts of queue {lane.queue!r} have expired: nobody holds the messages "
        "by them any more. A visibility timeout was over, or a message was released, updated, "
        "rejected or acked since. What was to be done for other receipts of this call is done",
        refused=tuple(receipt.encode() for receipt in refused),
    )


def _each_bucket(lane: Lane, receipts: Iterable[Receipt], move: Move) -> list[Receipt]:
    by_bucket: dict[BucketNo, list[Receipt]] = {}
    for receipt in receipts:
        by_bucket.setdefault(receipt.bucket, []).append(receipt)

    def one(bucket: BucketNo) -> list[Receipt]:
        asked = by_bucket[bucket]
        refused: list[Receipt] = []
        returns = Returns(lane, bucket)

        def change(row: Bucket) -> Bucket | None:
            runs = held_runs(row)
            held = [receipt for receipt in asked if is_held(runs, receipt)]
            refused[:] = [receipt for receipt in asked if not is_held(runs, receipt)]
            if not held:
                return None
            new = move(row, by_lease(held), lane.clock.now_us())
            # Before the CAS: the reader pointer may be past this bucket [R12].
            returns.hint(moved_times_us(row, new, union(runs_of(receipt) for receipt in held)))
            return new

        now = lane.change_bucket(bucket, change)
        returns.confirm()
        return refused if now is not None else asked

    return [receipt for some in each_bucket(lane, one, by_bucket).values() for receipt in some]


def _check_held(lane: Lane, row: Bucket | None, receipt: Receipt) -> None:
    if row is None or not is_held(held_runs(row), receipt):
        raise expired(lane, [receipt])
    lease = row.lease(receipt.lease_id)
    if lease is not None and lease.run is not None:
        raise UsageError(
            f"message {receipt.bucket * lane.bucket_size + receipt.first} of queue "
            f"{lane.queue!r} is held by the Spark batch of {lease.owner!r}: what a batch reads "
            "must not change. Put what you have to say into another queue, or release the message"
        )
