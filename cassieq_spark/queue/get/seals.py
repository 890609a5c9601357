"""`Seals` seals open buckets for a get, and claims in them by the same CAS [P16]. Holds I10."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cassieq_spark.queue.get.gather import try_one
from cassieq_spark.queue.get.scan import offset_below
from cassieq_spark.queue.get.young import SEALS_PER_CALL, OpenBuckets

if TYPE_CHECKING:
    from cassieq_spark.model.choice import Chooser
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.choosing import Choosing
    from cassieq_spark.queue.get.claim import Budget, Claimed, Claimer
    from cassieq_spark.queue.get.look import Rows, Scan
    from cassieq_spark.queue.get.scan import Scanner
    from cassieq_spark.queue.lane import Lane

ALONE_FOR_S: Final = 1.0
"""Another client's seal is left alone this long, while there are other buckets to seal. After that,
the client may be dead (I10)."""

SHORT_LINGER_S: Final = 0.05
"""If others' buckets have messages, a reader waits for young buckets only if ``linger`` is no
longer than this."""


class Seals:
    """The seals of one reader.

    Attributes:
        more_in_s: The time until the next claim can have more from open buckets than the last one
            has taken; None if no more was seen.
    """

    def __init__(
        self, lane: Lane, scanner: Scanner, choosing: Choosing, *, is_for_program: bool
    ) -> None:
        self._lane = lane
        self._scanner = scanner
        self._choosing = choosing
        self._is_for_program = is_for_program
        self.more_in_s: float | None = None
        self._open = OpenBuckets(lane, scanner)

    @property
    def sealed_singly(self) -> BucketNo | None:
        """See `OpenBuckets`."""
        return self._open.sealed_singly

    async def see(self, scan: Scan) -> None:
        """Note which open buckets hold messages, so that these become ripe; seal nothing."""
        await self._open.ripe(scan, has_found=False)

    async def claim(
        self,
        scan: Scan,
        claimer: Claimer,
        budget: Budget,
        below_id: int | None,
        *,
        updated: Rows,
        claimed: list[Claimed],
        waits: bool,
        theirs: Rows,
        before: BucketNo | None = None,
        by_proof: bool = False,
    ) -> float | None:
        """Seal ripe buckets, and claim in them: by id or, having met others, in its own order.

        If enough was found, only gaps are closed: the reader pointer would stand still at a gap,
        and every later call would begin there (I9, I10).

        Args:
            updated: Receives the rows that this changes.
            claimed: The claims so far; new ones are added.
            waits: Whether to wait for a young bucket if there is nothing else.
            before: Only buckets before this one; None: all.
            by_proof: See `OpenBuckets.ripe`.
            theirs: Buckets where others are at work, and which have messages if this finds too few.

        Returns:
            How long the first message is still too young; None if there is nothing to wait for.
        """
        has_found = bool(claimed)
        wants_more = not budget.is_full
        if not has_found:
            # Messages that were put since the last look must be found: memory only serves calls
            # that have messages already.
            self._open.look_again()
        ripe, young_for_s = await self._open.ripe(
            scan, has_found=has_found, only_gaps=not wants_more, by_proof=by_proof
        )
        has_filled = any(self._open.has_messages(bucket) for bucket in ripe)
        nothing_else = not (has_filled or has_found or scan.half_sealed)
        waits &= not theirs or self._lane.settings.linger_s <= SHORT_LINGER_S
        if nothing_else and young_for_s is not None and waits:
            # Nothing else is visible: a get waits for young messages rather than say "none".
            await self._lane.clock.sleep(young_for_s)
            young_for_s = None
            self._open.look_again()
            ripe, _ = await self._open.ripe(scan, has_found=False)
        left = [
            bucket
            for bucket in (*scan.half_sealed, *ripe)
            if bucket not in updated and (before is None or bucket < before)
        ]
        for _ in range(SEALS_PER_CALL):
            if not left or (wants_more and budget.is_full):
                break
            bucket = min(left, key=partial(self._place, scan, self._choosing.chooser))
            left.remove(bucket)
            close = claimer.close(
                bucket,
                budget=budget if wants_more else None,
                below=offset_below(below_id, bucket, self._lane.bucket_size),
                is_filled=self._open.has_messages(bucket),
                is_left_to_winner=bool(left) and self._is_for_program,
                helps=not left or bucket in scan.half_sealed or not self._choosing.has_met,
            )
            gathered = await try_one(self._lane, bucket, close, has_found=bool(claimed or theirs))
            gathered.hand_over(updated, self._scanner.pass_over)
            row = updated.get(bucket)
            is_ours = any(one.bucket == bucket for one in gathered.claimed)
            if self._is_for_program and row is not None and row.value.leases and not is_ours:
                self._choosing.note_lost(bucket)
            self._open.note_sealed(bucket, row, is_ours=is_ours)
            claimed += gathered.claimed
            budget.take_claimed(gathered.claimed)
        has_left = wants_more and any(
            bucket in scan.half_sealed or self._open.has_messages(bucket) for bucket in left
        )
        self.more_in_s = 0.0 if has_left else young_for_s
        return young_for_s if nothing_else and not theirs else None

    def _place(self, scan: Scan, chooser: Chooser, bucket: BucketNo) -> tuple[int, int]:
        """Return the rank of a bucket: begun seals, then buckets with messages, then empty ones.

        Neither a dead writer's gaps nor an abandoned seal may hide messages. A seal that another
        client has begun a moment ago comes last.
        """
        began_us = scan.half_sealed.get(bucket)
        if began_us is None:
            place = 1 if self._open.has_messages(bucket) else 2
        else:
            is_young = self._lane.clock.now_us() - began_us < ALONE_FOR_S * 1e6
            place = 3 if is_young and chooser.has_met else 0
        return place, chooser.turn(bucket)
