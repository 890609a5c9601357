"""Ack, extend, take over, release: one CAS per bucket for any number of leases. Holds I3, I4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark import metrics
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import EMPTY, union
from cassieq_spark.queue.apart import each_bucket
from cassieq_spark.queue.returns import Returns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo, Runs
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

TAKE_OVERS_AT_MOST: Final = 3
"""After so many that were answered too late the batch goes out as it is: others may have it too."""


def ack(
    lane: Lane,
    acked: Mapping[BucketNo, Mapping[UUID, Runs | None]],
    *,
    known: Mapping[BucketNo, Stored[Bucket]] | None = None,
) -> int:
    """Acknowledge messages by lease id, whoever's run the lease carries [R17].

    A lease that is not there was acked before, or ran out and is somebody else's delivery now: it
    is passed over. So is a bucket that was dropped.

    Returns:
        How many messages are done by this call: those that were held still.

    Args:
        acked: Per bucket and lease the runs that are done; None = all of the lease.
        known: Rows as last seen, to save reads.

    Raises:
        StoreError: A bucket could not be reached; the others' messages are acked [T5].
    """

    def one(bucket: BucketNo) -> int:
        leases = acked[bucket]
        found = 0

        def change(row: Bucket) -> Bucket | None:
            nonlocal found
            found = _held_of(row, leases)
            return rules.ack(row, leases, now_us=lane.clock.now_us()) if found else None

        lane.change_bucket(bucket, change, known=(known or {}).get(bucket))
        # What was found to be settled, and not what was asked for: a replay asks again.
        metrics.ACKS.inc()
        metrics.MESSAGES_ACKED.inc(found)
        return found

    return sum(each_bucket(lane, one, acked).values())


def _held_of(row: Bucket, leases: Mapping[UUID, Runs | None]) -> int:
    """How many messages an ack of these finds under their leases."""
    count = 0
    for lease in row.leases:
        if lease.lease_id in leases:
            runs = leases[lease.lease_id]
            count += (lease.runs if runs is None else lease.runs & runs).count
    return count


def count_settled(lane: Lane, delivered: Mapping[BucketNo, Mapping[UUID, Runs | None]]) -> int:
    """How many of these messages are done, whoever has acked them; of buckets that answer.

    One read a bucket. What has no row any more was dropped, and all done before (G5).
    """
    rows, _ = lane.store.buckets.read_some(lane.lane_id, delivered)
    count = 0
    for bucket, row in rows.items():
        asked = union(runs for runs in delivered[bucket].values() if runs is not None)
        left = EMPTY if row is None else asked & (row.value.unacked | row.value.purged)
        count += asked.count - left.count
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """What `extend` found of the leases it was given.

    Attributes:
        ended: Not there any more: acked, released, or re-claimed after they ran out.
        taken_over: There, but under another run: never to be taken back [R17].
    """

    ended: frozenset[UUID]
    taken_over: frozenset[UUID]


def extend(
    lane: Lane, bucket: BucketNo, lease_ids: Iterable[UUID], *, visibility_us: int, run: UUID | None
) -> Extended:
    """Let leases run out so long after the CAS is sent, if they are there and carry this run."""
    wanted = frozenset(lease_ids)
    returns = Returns(lane, bucket)

    def change(row: Bucket) -> Bucket | None:
        ours = [
            lease.lease_id for lease in row.leases if lease.lease_id in wanted and lease.run == run
        ]
        if not ours:
            return None
        # Now, and not when the row was first asked for: it may have waited for an outage (I2).
        until_us = lane.clock.now_us() + visibility_us
        returns.hint([until_us])
        return rules.extend(row, dict.fromkeys(ours), until_us=until_us, now_us=lane.clock.now_us())

    row = lane.change_bucket(bucket, change)
    returns.confirm()
    there = {} if row is None else {lease.lease_id: lease for lease in row.value.leases}
    return Extended(
        ended=frozenset(one for one in wanted if one not in there),
        taken_over=frozenset(one for one in wanted if one in there and there[one].run != run),
    )


def take_over(
    lane: Lane, bucket: BucketNo, lease_ids: Iterable[UUID], *, run: UUID, visibility_us: int
) -> Stored[Bucket] | None:
    """Make leases this run's, and let them run out so long after the CAS is sent [P25] [R17].

    Whoever's run they carry. A CAS that is answered after the end it has written is sent again.

    Returns:
        The row as it is then: the leases that are still in it are ours. None: there is no row.
    """
    wanted = frozenset(lease_ids)
    returns = Returns(lane, bucket)

    def change(row: Bucket) -> Bucket | None:
        if row.status is not Status.SEALED or not any(row.lease(one) for one in wanted):
            return None
        until_us = lane.clock.now_us() + visibility_us
        returns.hint([until_us])
        return rules.take_over(row, wanted, run=run, until_us=until_us, now_us=lane.clock.now_us())

    row: Stored[Bucket] | None = None
    for _ in range(TAKE_OVERS_AT_MOST):
        row = lane.change_bucket(bucket, change)
        returns.confirm()
        ours = [] if row is None else [one for one in row.value.leases if one.lease_id in wanted]
        if all(lease.until_us > lane.clock.now_us() for lease in ours):
            break
    return row


def release(
    lane: Lane, bucket: BucketNo, lease_ids: Iterable[UUID], *, is_counted: bool = True
) -> None:
    """Give messages back at once; leases that ended are passed over.

    The hint comes first, at the present minute: the reader pointer may be past this bucket, and
    then only a hint finds what came back (design 6).
    """
    wanted = frozenset(lease_ids)

    def change(row: Bucket) -> Bucket | None:
        if not any(row.lease(one) for one in wanted):
            return None
        return rules.release(
            row, dict.fromkeys(wanted), now_us=lane.clock.now_us(), is_counted=is_counted
        )

    returns = Returns(lane, bucket)
    returns.hint([0])
    lane.change_bucket(bucket, change)
    returns.confirm()
