"""Ack by receipt, with a verdict for each message; concurrent acks share their CAS (design 5).

Holds I3, I4: a receipt acks its own delivery, or nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreError, StoreTimeout
from cassieq_spark.model.ids import EMPTY
from cassieq_spark.model.settlement import Ack
from cassieq_spark.queue.apart import first_of, named
from cassieq_spark.queue.settle.receipts import NEVER, foreign
from cassieq_spark.queue.settle.settle import (
    Outcome,
    by_lease,
    expired,
    runs_of,
    settle_bucket,
)
from cassieq_spark.store.side_by_side import in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.ids import BucketNo, Place
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane

ACK: Final = Ack()


class Verdict(StrEnum):
    """The outcome of one ack.

    Attributes:
        ACKED: The message is done, by this receipt.
        ALREADY_ACKED: It was done before: by this receipt, by a later delivery, by a purge, or by
            its move to the dead-letter queue.
        STALE: The delivery ended: the message came back, or is somebody else's now.
        INVALID: The receipt names a message that this queue never had. Nothing was done, and
            asking again is of no use.
        UNKNOWN: The store could not say. Ask again: that is safe.
    """

    ACKED = "acked"
    ALREADY_ACKED = "already_acked"
    STALE = "stale"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Asked:
    """One caller's receipts of a bucket, with its answer: a verdict for each, in order."""

    receipts: Sequence[Receipt]
    verdicts: list[Verdict] = field(default_factory=list)
    failure: CassieqError | None = None
    is_done: bool = False

    def unknown(self, failure: CassieqError) -> None:
        """Set all verdicts to unknown."""
        self.verdicts = [Verdict.UNKNOWN] * len(self.receipts)
        self.failure = failure
        self.is_done = True


@dataclass(slots=True)
class _Gathering:
    """Receipts that wait for one bucket's next CAS; ``callers`` are in it or wait for it."""

    working: threading.Lock = field(default_factory=threading.Lock)
    asked: list[_Asked] = field(default_factory=list)
    callers: int = 0


class AckGroup:
    """One client's acks of a queue. Thread-safe.

    While one thread's CAS of a bucket is under way, other threads' receipts of that bucket gather,
    and the next CAS takes them all: one LWT for any number of receipts, and no wait if there is
    only one thread. Nobody waits for a bucket that it did not ask about [T5].
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: dict[Place, _Gathering] = {}

    def ack(
        self, lane: Lane, receipts: Sequence[Receipt]
    ) -> tuple[list[Verdict], CassieqError | None]:
        """Return a verdict for each receipt, and the error that made some of them unknown.

        Receipts of a bucket that cannot be reached are unknown; the others are acked.

        Raises:
            QueueDeleted: The lane is dead.
        """
        places: dict[Place, list[int]] = {}
        for at, receipt in enumerate(receipts):
            places.setdefault(receipt.place, []).append(at)

        def one(place: Place) -> _Asked:
            return self._ack_bucket(lane, place, [receipts[at] for at in places[place]])

        verdicts = [Verdict.UNKNOWN] * len(receipts)
        failed: dict[Place, CassieqError] = {}
        for place, asked in zip(places, lane.store.session.map(one, places), strict=True):
            for at, verdict in zip(places[place], asked.verdicts, strict=True):
                verdicts[at] = verdict
            if asked.failure is not None:
                failed[place] = named(asked.failure, lane, place)
        failure = first_of(failed) if failed else None
        if failure is not None and not isinstance(failure, StoreError):
            raise failure
        return verdicts, failure

    def _ack_bucket(self, lane: Lane, place: Place, receipts: Sequence[Receipt]) -> _Asked:
        mine = _Asked(receipts)
        with self._lock:
            gathering = self._gathered.setdefault(place, _Gathering())
            gathering.callers += 1
            gathering.asked.append(mine)
        session = lane.store.session
        what = f"acks of {lane.bucket_title(place.bucket)}"
        try:
            with session.call(), in_turn(gathering.working, what, session.left_s()):
                if not mine.is_done:
                    with self._lock:
                        together, gathering.asked = gathering.asked, []
                    _settle(lane.sibling(place.lane), place.bucket, together)
        except StoreTimeout as error:
            # Another thread may have taken these receipts along, and may still ack them.
            mine = _Asked(receipts)
            mine.unknown(error)
        finally:
            with self._lock:
                gathering.callers -= 1
                if not gathering.callers:
                    del self._gathered[place]
        return mine


def check_verdicts(lane: Lane, given: Sequence[Receipt], verdicts: Sequence[Verdict]) -> None:
    """Raise what the verdicts say, for a caller who wants all to be acked.

    Raises:
        ReceiptInvalid: Some messages were never there.
        ReceiptExpired: It names the receipts whose delivery had ended.
    """
    if Verdict.INVALID in verdicts:
        raise foreign(lane, NEVER)
    pairs = zip(given, verdicts, strict=True)
    if stale := [one for one, verdict in pairs if verdict is Verdict.STALE]:
        raise expired(lane, stale)


def _settle(lane: Lane, bucket: BucketNo, together: Sequence[_Asked]) -> None:
    """Settle all that was gathered for a bucket, by one CAS."""
    try:
        verdicts = ack_bucket(
            lane, bucket, [receipt for asked in together for receipt in asked.receipts]
        )
    except CassieqError as error:
        for asked in together:
            asked.unknown(error)
    except BaseException as error:
        # An error of this thread, perhaps a Ctrl-C: others must not take it for an answer.
        for asked in together:
            asked.unknown(
                CasAmbiguous(
                    "another thread, which was acking for this one too, was ended by "
                    f"{type(error).__name__}. Ack again"
                )
            )
        raise
    else:
        left = iter(verdicts)
        for asked in together:
            asked.verdicts = [next(left) for _ in asked.receipts]
            asked.is_done = True


def ack_bucket(lane: Lane, bucket: BucketNo, receipts: Sequence[Receipt]) -> list[Verdict]:
    """Ack one bucket's receipts, by at most one CAS; return a verdict for each.

    Raises:
        CasAmbiguous, StoreTimeout, StoreUnavailable: The outcome is unknown; ask again.
    """
    outcome = settle_bucket(lane, bucket, by_lease(receipts, ACK), tells_acked=True)
    if outcome.judged.is_whole:
        return [Verdict.ACKED] * len(receipts)  # as nearly always: all of them were held
    return [_verdict(outcome, receipt) for receipt in receipts]


def _verdict(outcome: Outcome, receipt: Receipt) -> Verdict:
    runs, judged = runs_of(receipt), outcome.judged
    if outcome.is_done(receipt, ACK):
        return Verdict.ACKED
    if runs & judged.never.get(receipt.lease_id, EMPTY):
        return Verdict.INVALID
    if runs & judged.stale.get(receipt.lease_id, EMPTY):
        return Verdict.STALE
    return Verdict.ALREADY_ACKED
