"""`OpenBuckets` decides which open buckets may be sealed now, and seals them for a get.

It claims in them by the same CAS [P16]. Holds I9, I10.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.choice import Chooser
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.outcome import Stored
from cassieq_spark.queue.get.choice import Choice
from cassieq_spark.queue.get.claim import GRACE_S, PATIENT_GRACE_S, Claimer, Round, Rows
from cassieq_spark.queue.get.scan import Scan, Scanner
from cassieq_spark.queue.get.unsealed import SEALS_PER_CALL, SHORT_LINGER_S, Peek
from cassieq_spark.queue.lane import Lane

YOUNG_PER_OPEN_S: Final = 0.005
"""A call that has found something leaves buckets alone that are younger than this times the number
of open non-empty ones. So it seals, and producers reserve, at most 200 times a second: half of what
the lane's one monoton row takes [R10]."""

FEW: Final = 10
"""A bucket with at most this many messages gained little from being left open: messages that come
later than ``linger`` after its seal began are taken at once. In either case, a reader that seals
alone seals once in ``linger`` at the most (ADR 29)."""

ALONE_FOR_S: Final = 1.0
"""Another client's seal is left alone this long, while there are other buckets to seal. After that,
the client may be dead (I10)."""


class OpenBuckets:
    """The open buckets of a lane as a reader knows them, and its seals."""

    def __init__(
        self, lane: Lane, scanner: Scanner, choice: Choice, *, is_for_program: bool
    ) -> None:
        self._lane = lane
        self._scanner = scanner
        self._choice = choice
        self._is_for_program = is_for_program
        self._looked_at: dict[BucketNo, float] = {}
        self._eager_after = math.inf
        self._ripe_at = -math.inf
        self._last_sealed = BucketNo(-1)

    @property
    def sealed_singly(self) -> BucketNo | None:
        """The last bucket that this reader has sealed, if it held only a few messages."""
        return None if self._eager_after == math.inf else self._last_sealed

    async def claim(
        self,
        scan: Scan,
        claimer: Claimer,
        round_: Round,
        *,
        waits: bool,
        theirs: Rows,
        before: BucketNo | None = None,
        by_proof: bool = False,
    ) -> None:
        """Seal ripe buckets, and claim in them: by id or, having met others, in its own order.

        If enough was found, only gaps are closed: the reader pointer would stand still at a gap,
        and every later call would begin there (I9, I10).

        Args:
            round_: Receives the claims, and the rows that this changes.
            waits: Whether to wait for a young bucket if there is nothing else.
            theirs: Buckets where others are at work, and which have messages if this finds too few.
            before: Only buckets before this one; None: all.
            by_proof: See `ripe`.
        """
        budget = round_.budget
        has_found = bool(round_.claimed)
        wants_more = not budget.is_full
        if not has_found:
            # Messages that were put since the last look must be found: memory only serves calls
            # that have messages already.
            self._looked_at.clear()
        ripe, young_for_s = await self.ripe(
            scan, has_found=has_found, only_gaps=not wants_more, by_proof=by_proof
        )
        has_filled = any(bucket in self._scanner.filled_at for bucket in ripe)
        nothing_else = not (has_filled or has_found or scan.half_sealed)
        waits &= not theirs or self._lane.settings.linger_s <= SHORT_LINGER_S
        if nothing_else and young_for_s is not None and waits:
            # Nothing else is visible: a get waits for young messages rather than say "none".
            await self._lane.clock.sleep(young_for_s)
            self._looked_at.clear()
            # A timer may end a moment early: what is still young is waited for again (I10).
            ripe, young_for_s = await self.ripe(scan, has_found=False)
        left = [
            bucket
            for bucket in (*scan.half_sealed, *ripe)
            if bucket not in round_.rows and (before is None or bucket < before)
        ]
        for _ in range(SEALS_PER_CALL):
            if not left or (wants_more and budget.is_full):
                break
            bucket = min(left, key=partial(self._place, scan, self._choice.chooser))
            left.remove(bucket)
            close = claimer.close(
                bucket,
                budget=budget if wants_more else None,
                is_filled=bucket in self._scanner.filled_at,
                is_left_to_winner=bool(left) and self._is_for_program,
                helps=not left or bucket in scan.half_sealed or not self._choice.has_met,
            )
            has_found = bool(round_.claimed or theirs)
            # It has several statements: none is waited for long, as other buckets follow.
            each_s = GRACE_S if has_found else PATIENT_GRACE_S
            with self._lane.store.session.within(each_s=each_s):
                is_ours = bool(await round_.add(bucket, close))
            row = round_.rows.get(bucket)
            round_.has_sealed |= row is not None and row.value.status is not Status.SEALING
            if self._is_for_program and row is not None and row.value.leases and not is_ours:
                self._choice.note_lost(bucket)
            self._note_sealed(bucket, row, is_ours=is_ours)
        # A look that was cut has not seen what lies behind as many open buckets as it seals.
        has_left = wants_more and (
            (scan.is_cut and young_for_s is None)
            or any(
                bucket in scan.half_sealed or bucket in self._scanner.filled_at for bucket in left
            )
        )
        round_.more_in_s = 0.0 if has_left else young_for_s
        round_.young_for_s = young_for_s if nothing_else and not theirs else None

    def _place(self, scan: Scan, chooser: Chooser, bucket: BucketNo) -> tuple[int, int]:
        """Return the rank of a bucket: begun seals, then buckets with messages, then empty ones.

        Neither a dead writer's gaps nor an abandoned seal may hide messages. A seal that another
        client has begun a moment ago comes last.
        """
        began_us = scan.half_sealed.get(bucket)
        if began_us is None:
            place = 1 if bucket in self._scanner.filled_at else 2
        else:
            is_young = self._lane.clock.now_us() - began_us < ALONE_FOR_S * 1e6
            place = 3 if is_young and chooser.has_met else 0
        return place, chooser.turn(bucket)

    def _note_sealed(self, bucket: BucketNo, row: Stored[Bucket] | None, *, is_ours: bool) -> None:
        """Note that a bucket is not open any more, and learn whether it pays to leave buckets open.

        If it held only a few messages, messages that come later than ``linger`` after that seal
        began are taken at once, as long as this reader seals alone. A message that comes sooner
        would have shared this bucket, so it waits for others. So looks that seal are ``linger``
        apart, as always, and no producer reserves more often [R10].

        Args:
            is_ours: Whether this reader has sealed it, and got messages from it.
        """
        if self._scanner.filled_at.pop(bucket, None) is None:
            return
        is_single = is_ours and row is not None and row.value.manifest.count <= FEW
        linger = self._lane.settings.linger_s
        self._eager_after = self._ripe_at + linger if is_single else math.inf
        self._last_sealed = max(self._last_sealed, bucket)

    def _is_alone(self, scan: Scan, oldest: BucketNo) -> bool:
        """Whether no other reader has sealed a bucket between our last one and the oldest open one.

        Otherwise, readers that are eager one after the other would together seal as often as they
        look.
        """
        between = oldest - self._last_sealed - 1
        return between == sum(self._last_sealed < bucket < oldest for bucket in scan.open)

    async def ripe(
        self, scan: Scan, *, has_found: bool, only_gaps: bool = False, by_proof: bool = False
    ) -> tuple[list[BucketNo], float | None]:
        """Return open buckets that may be sealed now, and the seconds until the next one may be.

        The latter is for the first other non-empty one, and for a call that has found nothing.

        Age is by this reader's own monotonic clock since it first saw a message there [R9]. An
        empty bucket waits for the gap timeout, by the oldest proof of its reservation [R11] [P5].
        With ``by_proof``, such a proof counts for the others as well: a reader sees a bucket once.
        """
        lane = self._lane
        now = lane.clock.monotonic()
        linger = lane.settings.linger_s
        # Buckets that others have sealed are not open any more, and R passes them.
        filled_at = self._scanner.filled_at
        for bucket in [at for at in filled_at if at < scan.pointers.reader]:
            del filled_at[bucket]
        self._looked_at = {
            bucket: seen for bucket, seen in self._looked_at.items() if now - seen < linger
        }
        gap_us = int(lane.settings.gap_timeout_s * 1e6)
        now_us = lane.clock.now_us()
        is_old = {bucket: now_us - scan.oldest_later_us[bucket] >= gap_us for bucket in scan.open}
        to_look = [
            bucket
            for bucket in scan.open
            if not (bucket in filled_at or bucket in self._looked_at)
            and (is_old[bucket] or not only_gaps)
        ][: SEALS_PER_CALL if only_gaps else None]
        # The answers of the look's peek are used once: a caller that waits asks again.
        has_messages = {at: scan.peeked.pop(at) for at in to_look if at in scan.peeked}
        away = self._scanner.away
        unknown = [at for at in to_look if at not in has_messages and at not in away]
        has_messages |= await Peek(self._lane, unknown, self._scanner.pass_over).answers()
        self._scanner.learn_filled(has_messages)
        seen_at = self._ripe_at = lane.clock.monotonic()
        ripe = []
        # An open bucket keeps its messages: whoever takes them seals it first.
        filled = [bucket for bucket in scan.open if bucket in filled_at]
        for bucket, has_any in has_messages.items():
            if is_old[bucket] and not has_any:
                ripe.append(bucket)  # not noted: a call that leaves it open must see it again (I9)
            else:
                self._looked_at[bucket] = seen_at
        if only_gaps:
            filled.clear()  # who needs their messages seals them, and claims by the same CAS
        oldest_allowed = max(linger, YOUNG_PER_OPEN_S * len(filled) if has_found else 0.0)
        eager_in = math.inf
        if filled and not has_found and self._is_alone(scan, min(filled)):
            eager_in = max(0.0, self._eager_after - seen_at)
        ages = {bucket: seen_at - filled_at[bucket] for bucket in filled}
        if by_proof:
            proved_us = {bucket: now_us - scan.oldest_later_us[bucket] for bucket in filled}
            ages = {bucket: max(age, proved_us[bucket] / 1e6) for bucket, age in ages.items()}
        waits = {at: min(eager_in, linger - ages[at]) for at in filled}
        young = {at: wait for at, wait in waits.items() if wait > linger - oldest_allowed}
        ripe += [at for at in filled if at not in young]
        return ripe, max(0.0, min(young.values())) if young else None
