"""Ack by receipt, with a verdict for each message; concurrent acks share their CAS (design 5).

Holds I3, I4: a receipt acks its own delivery, or nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import EMPTY, Runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane


class Verdict(StrEnum):
    """What became of one ack.

    Attributes:
        ACKED: The message is done, by this receipt.
        ALREADY_ACKED: It was done before: by this receipt, or by a later delivery.
        STALE: The delivery ended: the message came back, or is somebody else's now.
        UNKNOWN: The store could not say. Ask again: that is safe.
    """

    ACKED = "acked"
    ALREADY_ACKED = "already_acked"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Asked:
    """One caller's receipts, and what it is told."""

    receipts: Sequence[Receipt]
    verdicts: dict[Receipt, Verdict] = field(default_factory=dict)
    failure: CassieqError | None = None
    is_done: bool = False


class AckGroup:
    """One client's acks of a lane. Thread-safe.

    While one thread's CAS is under way, other threads' receipts gather, and the next CAS takes them
    all: one LWT a bucket for any number of receipts, and no waiting where there is one thread.
    """

    def __init__(self) -> None:
        self._gathering = threading.Lock()
        self._working = threading.Lock()
        self._asked: list[_Asked] = []

    def ack(
        self, lane: Lane, receipts: Sequence[Receipt]
    ) -> tuple[dict[Receipt, Verdict], CassieqError | None]:
        """Verdicts by receipt, and what made some of them unknown.

        Raises:
            QueueDeleted: The lane is dead.
        """
        mine = _Asked(receipts)
        with self._gathering:
            self._asked.append(mine)
        with self._working:
            if not mine.is_done:
                with self._gathering:
                    together, self._asked = self._asked, []
                _settle(lane, together)
        if mine.failure is not None and not isinstance(mine.failure, StoreError):
            raise mine.failure
        return mine.verdicts, mine.failure


def _settle(lane: Lane, together: Sequence[_Asked]) -> None:
    """All that was gathered: one CAS a bucket."""
    by_bucket: dict[BucketNo, set[Receipt]] = {}
    for asked in together:
        for receipt in asked.receipts:
            by_bucket.setdefault(receipt.bucket, set()).add(receipt)

    def one(bucket: BucketNo) -> tuple[dict[Receipt, Verdict], CassieqError | None]:
        try:
            return ack_bucket(lane, bucket, by_bucket[bucket]), None
        except CassieqError as error:
            return dict.fromkeys(by_bucket[bucket], Verdict.UNKNOWN), error

    verdicts: dict[Receipt, Verdict] = {}
    failures: dict[BucketNo, CassieqError] = {}
    for bucket, (some, failure) in zip(
        by_bucket, lane.store.session.map(one, by_bucket), strict=True
    ):
        verdicts |= some
        if failure is not None:
            failures[bucket] = failure
    for asked in together:
        asked.verdicts = {receipt: verdicts[receipt] for receipt in asked.receipts}
        asked.failure = next(
            (failures[one.bucket] for one in asked.receipts if one.bucket in failures), None
        )
        asked.is_done = True


def ack_bucket(lane: Lane, bucket: BucketNo, receipts: Iterable[Receipt]) -> dict[Receipt, Verdict]:
    """One bucket's receipts, by one read and at most one CAS.

    Raises:
        CasAmbiguous, StoreTimeout, StoreUnavailable: Nobody knows; ask again.
    """
    asked = list(receipts)
    verdicts: dict[Receipt, Verdict] = {}

    def change(row: Bucket) -> Bucket | None:
        verdicts.update(_judge(row, asked))
        acked = by_lease(one for one in asked if verdicts[one] is Verdict.ACKED)
        return rules.ack(row, acked, now_us=lane.clock.now_us()) if acked else None

    row = lane.change_bucket(bucket, change)
    if row is None:
        verdicts = dict.fromkeys(asked, Verdict.UNKNOWN)
    in_doubt = [one for one in asked if verdicts[one] in (Verdict.STALE, Verdict.UNKNOWN)]
    if in_doubt and lane.is_dropped(bucket):
        # Below the repair pointer all is over: only drained buckets are dropped. A row that is
        # there is a ghost, and knows nothing of what was acked (G5, ADR 11).
        verdicts.update(dict.fromkeys(in_doubt, Verdict.ALREADY_ACKED))
    metrics.ACKS.inc()
    done = [one for one, verdict in verdicts.items() if verdict is Verdict.ACKED]
    metrics.MESSAGES_ACKED.inc(sum(one.last - one.first + 1 for one in done))
    return verdicts


def runs_of(receipt: Receipt) -> Runs:
    """The offsets a receipt is for."""
    return Runs.span(receipt.first, receipt.last)


def _judge(row: Bucket, receipts: Iterable[Receipt]) -> dict[Receipt, Verdict]:
    unacked = row.unacked
    held: dict[UUID, Runs] = {}
    for lease in row.leases:
        held[lease.lease_id] = held.get(lease.lease_id, EMPTY) | lease.runs
    verdicts = {}
    for receipt in receipts:
        runs = runs_of(receipt)
        if runs.issubset(held.get(receipt.lease_id, EMPTY)):
            verdicts[receipt] = Verdict.ACKED
        elif not runs.issubset(row.manifest):
            verdicts[receipt] = Verdict.UNKNOWN
        elif not runs & unacked:
            verdicts[receipt] = Verdict.ALREADY_ACKED
        else:
            verdicts[receipt] = Verdict.STALE
    return verdicts


def by_lease(receipts: Iterable[Receipt]) -> dict[UUID, Runs | None]:
    """Offsets by lease id, as the moves of `model.lease` take them."""
    found: dict[UUID, list[tuple[int, int]]] = {}
    for receipt in receipts:
        found.setdefault(receipt.lease_id, []).append((receipt.first, receipt.last))
    return {lease_id: Runs.of(*pairs) for lease_id, pairs in found.items()}
