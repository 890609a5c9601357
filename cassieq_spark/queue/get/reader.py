"""Get messages: scan, claim in sealed buckets, seal open ones if needed. Holds I2, I10."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import Status
from cassieq_spark.queue.get.choosing import Choosing
from cassieq_spark.queue.get.claim import GRACE_S, Budget, Claimed, Claimer, give_back
from cassieq_spark.queue.get.gather import gather, share
from cassieq_spark.queue.get.leftover import Leftover
from cassieq_spark.queue.get.look import Rows, Scan
from cassieq_spark.queue.get.quiet import Quiet
from cassieq_spark.queue.get.scan import Scanner, offset_below
from cassieq_spark.queue.get.seals import Seals
from cassieq_spark.queue.get.search import Round, Search

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

CLAIMS_PER_HINT = 64
"""The number of claims that are sent under hints that were written together. Their leases begin to
run with the hints, and must not be old when the last CAS is sent."""

AHEAD_FOR_S = 5.0
"""A look ahead is used this long. After that, others have been there, and claims would fail."""

ROUNDS = 4
"""The number of times that a call tries for the rest after it lost races."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """A look that found enough, with its arguments, and until when it is used (monotonic)."""

    scan: Scan
    asked: tuple[int, int | None, float | None]
    good_until: float


class Reader:
    """One consumer of a lane.

    Attributes:
        has_looked: Whether it has looked at the lane for a get: unseen messages are young.
        quiet: Knows whether the last get found nothing, and whether the next may find more.
    """

    def __init__(self, lane: Lane, *, owner: str, run: UUID | None, visibility_us: int) -> None:
        self.lane = self._lane = lane
        self._claimer = Claimer(lane=lane, owner=owner, run=run, visibility_us=visibility_us)
        # A Spark batch takes all it can, in the order of ids.
        self._is_for_program = run is None
        self._scanner = Scanner(lane, goes_on=self._is_for_program)
        self.quiet = Quiet(lane, self._scanner)
        self._ahead: _Ahead | None = None
        self.has_looked = False
        self._passed: tuple[Scan, Rows] | None = None
        self._leftover = Leftover(lane)
        self._choosing = Choosing(lane, self._leftover)
        self._seals = Seals(
            lane, self._scanner, self._choosing, is_for_program=self._is_for_program
        )

    def lease_as(self, owner: str, visibility_us: int) -> None:
        """Set the owner of the leases that the next gets take, and their duration."""
        self._claimer = replace(self._claimer, owner=owner, visibility_us=visibility_us)

    def keeps_apart(self, at_most: int) -> bool:
        """Whether others are at work in this lane, and our buckets have ``at_most`` messages."""
        return self._choosing.has_met and bool(self._leftover.rows(at_most))

    async def count(self, enough: int) -> int:
        """Estimate how many messages a get would find, counted up to ``enough``; claim nothing."""
        lane = self._lane
        scan = await self._scanner.scan(enough)
        found = scan.available + scan.available_in_crowds
        now_us = lane.clock.now_us()
        for bucket in (*scan.half_sealed, *scan.open):
            if found >= enough:
                break
            found += await lane.messages.count(bucket, now_us=now_us)
        return found

    async def look_ahead(
        self, at_most: int, *, below_id: int | None = None, at_most_bytes: float | None = None
    ) -> bool:
        """Look now for the messages that the next `get` of as many will claim; claim nothing.

        Return whether it has found enough in sealed buckets, so that the get needs no look. The get
        claims rows as last seen, by CAS: a row that has changed since is claimed as it is then.

        Raises:
            QueueDeleted: The lane is dead.
        """
        if self._passed is not None:
            await self._scanner.advance(*self._passed)
            self._passed = None
        scan = await self._scanner.scan(at_most, below_id=below_id, want_bytes=at_most_bytes)
        if scan.available >= at_most or scan.available_bytes >= (at_most_bytes or math.inf):
            self._ahead = _Ahead(
                scan=scan,
                asked=(at_most, below_id, at_most_bytes),
                good_until=self._lane.clock.monotonic() + AHEAD_FOR_S,
            )
        return self._ahead is not None

    async def get(
        self,
        at_most: int,
        *,
        below_id: int | None = None,
        at_most_bytes: float | None = None,
    ) -> list[Claimed]:
        """Claim up to ``at_most`` messages, ids below ``below_id``; none only if none is visible.

        It claims about ``at_most_bytes``, as stored, but at least one message.

        It costs one LWT per sealed bucket, and two more per bucket to seal first. It may wait up to
        ``linger`` for a bucket that is too young, but not if messages come singly (`note_sealed`).

        Raises:
            QueueDeleted: The lane is dead.
            StoreTimeout, StoreUnavailable: Nothing was found, and a part did not answer.
            CasAmbiguous: See `Claimer.claim`.
            CasContention: It lost every race.
        """
        until = self._lane.clock.monotonic() + self._lane.store.session.left_s()
        search = self.search()
        while not search.is_over:
            budget = Budget(messages=at_most, size_bytes=at_most_bytes)
            if claimed := await self.go_round(search, budget, below_id, waits=True):
                return claimed
            if search.failure is not None and self._lane.clock.monotonic() >= until:
                raise search.failure
            if search.pause_s:
                await self._lane.clock.sleep(search.pause_s)
        return []

    async def tidy(self) -> None:
        """Do the side work of a get that finds nothing: close gaps, bury, move the pointer on.

        After it, `Quiet.may_find` takes two reads if nothing is visible (I9). It claims no message
        that may have come, and does not wait for buckets that do not answer.

        Raises:
            QueueDeleted: The lane is dead.
            StoreTimeout, StoreUnavailable: It could not look.
        """
        await self.go_round(self.search(), Budget(messages=0), None, waits=False)

    async def see(self, budget: Budget, below_id: int | None) -> None:
        """Look for as much as the budget, so that young messages ripen from now on; claim nothing.

        Raises:
            QueueDeleted: The lane is dead.
            StoreTimeout, StoreUnavailable: It could not look.
        """
        scan = await self._scanner.scan(
            budget.messages, below_id=below_id, want_bytes=budget.size_bytes, peeks=True
        )
        await self._seals.see(scan)
        self.has_looked = True

    @property
    def is_sure(self) -> bool:
        """Whether the last look has passed over no bucket: if it has, "none" would be a guess."""
        return not self._scanner.passed_over

    def search(self) -> Search:
        """Begin a get of this lane."""
        self.quiet.since = None
        return Search(self._lane, self._scanner)

    async def go_round(
        self, search: Search, budget: Budget, below_id: int | None, *, waits: bool
    ) -> list[Claimed]:
        """Look once, or use the rest of the last look, and claim and seal what was found.

        Args:
            budget: Claimed messages are subtracted from it.
            waits: Whether to wait for a young bucket if there is nothing else.

        Returns:
            Our new claims. If there are none, ``search`` knows why.

        Raises:
            CassieqError: See `get`.
        """
        self.has_looked = True
        search.more_at = None
        now_s = self._lane.clock.monotonic
        if self._is_for_program and budget.messages > 0:
            search.begin(self._choosing)
        if claimed := await self._claim_left(budget, below_id) or await self._claim_ahead(
            budget, below_id
        ):
            search.more_at = None if budget.is_full else now_s()
            return claimed
        scan = await self._scanner.scan(
            max(1, budget.messages),
            below_id=below_id,
            want_bytes=budget.size_bytes,
            peeks=not budget.is_full,
            sealed_singly=self._seals.sealed_singly if waits else None,
            chooser=self._choosing.chooser if self._choosing.keeps_apart else None,
            is_by_id=self._choosing.is_by_id,
        )
        updated: Rows = {}
        taken: list[Claimed] = []
        try:
            young_for_s = await self._take(scan, budget, below_id, updated, taken, waits=waits)
        except CassieqError:
            await give_back(taken)  # no consumer gets to see them [T22]
            raise
        if (scan.open or scan.half_sealed) and self._seals.more_in_s is not None:
            search.more_at = now_s() + self._seals.more_in_s
        if self._is_for_program and not self._choosing.is_by_id:  # by id, it is where others are
            self._leftover.begin(taken, scan.candidates | updated)
        moved = self._scanner.begin_advance(scan, updated)
        has_found = bool(taken or updated or scan.available)
        if not has_found and self._scanner.is_quiet_after(scan):
            self.quiet.since = scan
        try:
            confirmed = await self._claimer.confirm(taken)
        finally:
            await moved()
        if not confirmed:
            silent = {*scan.open, *scan.half_sealed} & updated.keys()
            ended = [at for at in silent if updated[at].value.status is not Status.SEALING]
            search.note(
                Round(
                    has_changed=bool(updated),
                    has_sealed=bool(ended),
                    young_for_s=young_for_s,
                )
            )
        return confirmed

    async def _take(
        self,
        scan: Scan,
        budget: Budget,
        below_id: int | None,
        updated: Rows,
        claimed: list[Claimed],
        *,
        waits: bool,
    ) -> float | None:
        """Claim and seal what a look has found, in the order of `model.choice`.

        Returns:
            As `Seals.claim`.
        """
        seal = partial(
            self._seals.claim,
            scan,
            self._claimer,
            budget,
            below_id,
            updated=updated,
            claimed=claimed,
        )
        ours, theirs = self._choosing.split(scan.candidates)
        has_open = bool(scan.open or scan.half_sealed)
        if has_open and self._choosing.is_by_id:
            await seal(
                waits=False, theirs=ours, before=self._choosing.oldest_fresh(ours), by_proof=True
            )
        await self._claim_sealed(ours, budget, below_id, updated, into=claimed)
        young_for_s = await seal(waits=waits, theirs=theirs) if has_open else None
        if theirs and not budget.is_full:
            await self._claim_sealed(theirs, budget, below_id, updated, into=claimed, rounds=1)
        return young_for_s

    async def _claim_left(self, budget: Budget, below_id: int | None) -> list[Claimed]:
        """Claim from the last get's buckets, without a look. A lost race is followed by one."""
        if budget.messages < 1 or below_id is not None or budget.size_bytes is not None:
            return []
        if self._choosing.is_by_id:
            return []
        rows = self._leftover.rows(budget.messages)
        claimed = await self._claim_sealed(rows, replace(budget), None, {}, rounds=1)
        return await self._confirmed(claimed, budget)

    async def _claim_ahead(self, budget: Budget, below_id: int | None) -> list[Claimed]:
        """Claim from the look ahead, if it was made for as many messages."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or self._lane.clock.monotonic() >= ahead.good_until:
            return []
        at_most, *others = ahead.asked
        if at_most < budget.messages or others != [below_id, budget.size_bytes]:
            return []
        updated: Rows = {}
        claimed = await self._claim_sealed(
            ahead.scan.candidates, replace(budget), below_id, updated
        )
        self._passed = (ahead.scan, updated)  # the pointer has time until the next look
        return await self._confirmed(claimed, budget)

    async def _confirmed(self, claimed: list[Claimed], budget: Budget) -> list[Claimed]:
        """Confirm messages that were claimed without a look, and subtract them from the budget."""
        confirmed = await self._claimer.confirm(claimed)
        budget.take_claimed(confirmed)
        return confirmed

    async def _claim_sealed(
        self,
        candidates: Rows,
        budget: Budget,
        below_id: int | None,
        updated: Rows,
        *,
        into: list[Claimed] | None = None,
        rounds: int = ROUNDS,
    ) -> list[Claimed]:
        """Claim candidates side by side. Take the rest from rows without a lost race [P28].

        Args:
            into: The claims so far; new ones are added.
        """
        claimed = [] if into is None else into
        rows = self._choosing.in_order(candidates)
        for _ in range(rounds):
            plan = replace(budget)
            shares = share(self._lane, rows, plan, below_id, away=self._scanner.away)
            if not shares:
                budget.size_bytes = plan.size_bytes
                break
            got: list[Claimed] = []
            for at in range(0, len(shares), CLAIMS_PER_HINT):
                some = shares[at : at + CLAIMS_PER_HINT]
                has_found = bool(claimed or got)
                try:
                    got += await self._claim_shares(
                        some, rows, below_id, updated, has_found=has_found
                    )
                except StoreError as error:
                    if not has_found:
                        raise  # no hint could be written; otherwise, granted messages go out [T22]
                    event(_logger, "bucket_unreachable", **self._lane.as_fields(), error=str(error))
                    claimed += got
                    budget.take_claimed(got)
                    return claimed
            claimed += got
            budget.take_claimed(got)
            if budget.is_full:
                break
            # Rows of a lost race go to the end, as they are now [P28].
            tried = {bucket: updated[bucket] for bucket, _ in shares if bucket in updated}
            rows = {bucket: row for bucket, row in rows.items() if bucket not in tried} | tried
        return claimed

    async def _claim_shares(
        self,
        shares: list[tuple[BucketNo, int]],
        rows: Rows,
        below_id: int | None,
        updated: Rows,
        *,
        has_found: bool,
    ) -> list[Claimed]:
        """Write all their hints at once, then send a CAS for each, up to 16 at a time.

        A bucket's granted messages are not lost with another bucket's answer [T22].
        """
        counts = dict(shares)
        if len(counts) > 1:
            until_us = self._claimer.terms(1).until_us
            with self._lane.store.session.within(each_s=GRACE_S if has_found else math.inf):
                await self._claimer.hint(counts, until_us)

        async def one(bucket: BucketNo) -> tuple[list[Claimed], Stored[Bucket] | None]:
            below = offset_below(below_id, bucket, self._lane.bucket_size)
            return await self._claimer.claim(
                bucket,
                rows[bucket],
                counts[bucket],
                below=below,
                fresh_first=self._choosing.is_by_id,
            )

        gathered = await gather(self._lane, one, list(counts), has_found=has_found)
        gathered.hand_over(updated, self._scanner.pass_over)
        if self._is_for_program:
            self._choosing.learn(gathered, {bucket: rows[bucket] for bucket in counts})
        return gathered.claimed
