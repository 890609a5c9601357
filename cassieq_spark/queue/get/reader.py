"""`Reader` gets messages of one lane: look, claim in sealed buckets, seal open ones if needed.

`Search` decides whether one get is done with the lane. Three rules spare a reader its looks:

- A program goes on in the buckets of its last get for a second (`Choice.left`).
- A Spark batch may be looked for while the last one is at work (`Reader.look_ahead`).
- After an empty get, two cheap reads come first. A whole look is due each 30 s (`Reader.may_find`).

The first two are followed by a look if they give nothing. Holds I2, I9, I10.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Final

from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.choice import has_fresh
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.rows.writer import MAX_REFUSALS
from cassieq_spark.queue.get.choice import Choice
from cassieq_spark.queue.get.claim import (
    GRACE_S,
    Answer,
    Budget,
    Claimed,
    Claimer,
    Holder,
    Round,
    Rows,
    give_back,
)
from cassieq_spark.queue.get.open_buckets import OpenBuckets
from cassieq_spark.queue.get.scan import Scan, Scanner
from cassieq_spark.queue.lane import Lane, first_of
from cassieq_spark.store.rows import race_pause_s

CLAIMS_PER_HINT: Final = 64
"""The number of claims that are sent under hints that were written together. Their leases begin to
run with the hints, and must not be old when the last CAS is sent."""

TRIES: Final = 4
"""The number of times that a call tries for the rest after it lost races."""

AHEAD_FOR_S: Final = 5.0
"""A look ahead is used this long: what came back since, or with a higher priority, waits for one
batch. After that, others have been there, and claims would fail."""

QUIET_FOR_S: Final = 30.0
"""An idle consumer goes this long without a whole look, which also moves the pointers on."""

PAUSE_S: Final = 0.25
"""A call that has no messages waits a quarter to all of this before it asks unanswered buckets
again: their messages wait no longer once they answer (I10)."""

_logger = get_logger("queue")


class Reader:
    """A consumer of a lane.

    Attributes:
        has_looked: Whether it has looked at the lane for a get: unseen messages are young.
        since: The look that found nothing; None if the last one found something, or is running.
    """

    def __init__(self, lane: Lane, holder: Holder) -> None:
        self.lane = self._lane = lane
        self._claimer = Claimer(lane, holder)
        self._is_for_program = holder.is_program
        self._scanner = Scanner(lane, holder)
        self._choice = Choice(lane)
        self._open = OpenBuckets(
            lane, self._scanner, self._choice, is_for_program=self._is_for_program
        )
        self._ahead: tuple[Scan, Budget] | None = None  # it found enough for this
        self.has_looked = False
        self.since: Scan | None = None
        self._asked_at = -math.inf

    async def may_find(self) -> bool:
        """Whether a get may find something after one that found nothing, by two cheap reads."""
        now, since = self._lane.clock.monotonic(), self.since
        if since is None or now - since.looked_at > QUIET_FOR_S:
            self._scanner.first_reads.forget_news()
            return True
        if await self._scanner.first_reads.has_news(since):
            return True
        self._asked_at = now
        return False

    def rests(self, for_s: float) -> bool:
        """Whether the last get found nothing, and this lane was asked within ``for_s``."""
        if self.since is None:
            return False
        asked_at = max(self.since.looked_at, self._asked_at)
        return self._lane.clock.monotonic() - asked_at < for_s

    @property
    def is_drained(self) -> bool:
        """Whether the last look was recent and found that nothing at all was left in the lane."""
        scan = self.since
        if scan is None or self._lane.clock.monotonic() - scan.looked_at > QUIET_FOR_S:
            return False
        return scan.pointers.repair * self._lane.bucket_size >= scan.monoton.next_id

    def keeps_apart(self, at_most: int) -> bool:
        """Whether others are at work in this lane, and our buckets have ``at_most`` messages."""
        return self._choice.has_met and bool(self._choice.left(at_most))

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

    async def look_ahead(self, at_most: int, *, at_most_bytes: float | None = None) -> bool:
        """Look now for the messages that the next `get` of as many will claim; claim nothing.

        Return whether it has found enough in sealed buckets, so that the get needs no look. The get
        claims rows as last seen, by CAS: a row that has changed since is claimed as it is then.

        Raises:
            QueueDeleted: The lane is dead.
        """
        scan = await self._scanner.scan(at_most, want_bytes=at_most_bytes)
        if scan.available >= at_most or scan.available_bytes >= (at_most_bytes or math.inf):
            self._ahead = scan, Budget(messages=at_most, size_bytes=at_most_bytes)
        return self._ahead is not None

    async def get(self, at_most: int, *, at_most_bytes: float | None = None) -> list[Claimed]:
        """Claim up to ``at_most`` messages; none only if none is visible.

        It claims about ``at_most_bytes``, as stored, but at least one message.

        It costs one LWT per sealed bucket, and two more per bucket to seal first. It may wait up to
        ``linger`` for a bucket that is too young, but not if messages come singly (`OpenBuckets`).

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
            if claimed := await self.go_round(search, budget, waits=True):
                return claimed
            if search.failure is not None and self._lane.clock.monotonic() >= until:
                raise search.failure
            if search.pause_s:
                await self._lane.clock.sleep(search.pause_s)
        return []

    async def tidy(self) -> None:
        """Do the side work of a get that finds nothing: close gaps, bury, move the pointer on.

        After it, `may_find` takes two reads if nothing is visible (I9). It claims no message
        that may have come, and does not wait for buckets that do not answer.

        Raises:
            QueueDeleted: The lane is dead.
            StoreTimeout, StoreUnavailable: It could not look.
        """
        await self.go_round(self.search(), Budget(messages=0), waits=False)

    async def see(self, budget: Budget) -> None:
        """Look for as much as the budget, so that young messages ripen from now on; claim nothing.

        Raises:
            QueueDeleted: The lane is dead.
            StoreTimeout, StoreUnavailable: It could not look.
        """
        scan = await self._scanner.scan(budget.messages, want_bytes=budget.size_bytes, peeks=True)
        await self._open.ripe(scan, has_found=False)
        self.has_looked = True

    @property
    def is_sure(self) -> bool:
        """Whether the last look has passed over no bucket: if it has, "none" would be a guess."""
        return not self._scanner.passed_over

    def search(self) -> Search:
        """Begin a get of this lane."""
        self.since = None
        if self._is_for_program:
            self._choice.begin()
        return Search(self._lane, self._scanner)

    async def go_round(self, search: Search, budget: Budget, *, waits: bool) -> list[Claimed]:
        """Claim without a look, or look once, and claim and seal what was found.

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
        if claimed := await self._claim_known(budget):
            search.more_at = None if budget.is_full else now_s()
            return claimed
        scan = await self._scanner.scan(
            max(1, budget.messages),
            want_bytes=budget.size_bytes,
            peeks=not budget.is_full,
            sealed_singly=self._open.sealed_singly if waits else None,
            chooser=self._choice.chooser if self._is_for_program else None,
        )
        round_ = self._round(budget)
        try:
            await self._take(scan, round_, waits=waits)
        except CassieqError:
            await give_back(round_.claimed)  # no consumer gets to see them [T22]
            raise
        if round_.more_in_s is not None:
            search.more_at = now_s() + round_.more_in_s
        if self._is_for_program and not self._choice.is_by_id:  # by id, it is where others are
            self._choice.keep(round_.claimed, scan.candidates | round_.rows)
        has_found = bool(round_.claimed or round_.rows or scan.available)
        if not has_found and self._scanner.is_quiet_after(scan):
            self.since = scan
        confirmed = await self._confirm(round_, scan)
        if not confirmed:
            search.note(round_, is_cut=scan.is_cut)
        return confirmed

    def _round(self, budget: Budget) -> Round:
        return Round(lane=self._lane, budget=budget, pass_over=self._scanner.pass_over)

    async def _claim_known(self, budget: Budget) -> list[Claimed]:
        """Claim from rows that need no look. A program's lost race is followed by one."""
        ahead, self._ahead = self._ahead, None
        scan: Scan | None = None
        if self._is_for_program:
            if budget.messages < 1 or budget.size_bytes is not None or self._choice.is_by_id:
                return []
            rows, tries = self._choice.left(budget.messages), 1
        elif (
            ahead is not None
            and ahead[1].messages >= budget.messages
            and ahead[1].size_bytes == budget.size_bytes
            and self._lane.clock.monotonic() < ahead[0].looked_at + AHEAD_FOR_S
        ):
            scan, rows, tries = ahead[0], ahead[0].candidates, TRIES
        else:
            return []
        round_ = self._round(replace(budget))
        await self._claim_sealed(round_, rows, tries=tries)
        confirmed = await self._confirm(round_, scan)
        budget.take_claimed(confirmed)
        return confirmed

    async def _confirm(self, round_: Round, scan: Scan | None) -> list[Claimed]:
        """Confirm the claims of a round, while the reader pointer moves over what a look saw."""
        moved = None if scan is None else self._scanner.begin_advance(scan, round_.rows)
        try:
            return await self._claimer.confirm(round_.claimed)
        finally:
            if moved is not None:
                await moved()

    async def _take(self, scan: Scan, round_: Round, *, waits: bool) -> None:
        """Claim and seal what a look has found, in the order of `model.choice`."""
        seal = partial(self._open.claim, scan, self._claimer, round_)
        ours, theirs = self._choice.split(scan.candidates)
        has_open = bool(scan.open or scan.half_sealed)
        if has_open and self._choice.is_by_id:
            # Open buckets come before the first sealed one with fresh messages.
            now_us = self._lane.clock.now_us()
            fresh = (at for at, row in ours.items() if has_fresh(row.value, now_us))
            await seal(waits=False, theirs=ours, before=min(fresh, default=None), by_proof=True)
        await self._claim_sealed(round_, ours)
        if has_open:
            await seal(waits=waits, theirs=theirs)
        if theirs and not round_.budget.is_full:
            await self._claim_sealed(round_, theirs, tries=1)

    async def _claim_sealed(self, round_: Round, candidates: Rows, *, tries: int = TRIES) -> None:
        """Claim candidates side by side. Take the rest from rows without a lost race [P28]."""
        budget, rows = round_.budget, self._choice.in_order(candidates)
        for _ in range(tries):
            plan = replace(budget)
            shares = self._claimer.share(rows, plan, away=self._scanner.away)
            if not shares:
                budget.size_bytes = plan.size_bytes
                break
            planned = list(shares.items())
            for at in range(0, len(planned), CLAIMS_PER_HINT):
                try:
                    await self._claim_shares(round_, dict(planned[at : at + CLAIMS_PER_HINT]), rows)
                except StoreError as error:
                    if not round_.claimed:
                        raise  # no hint could be written; otherwise, granted messages go out [T22]
                    event(_logger, "bucket_unreachable", **self._lane.as_fields(), error=str(error))
                    return
            if budget.is_full:
                break
            # Rows of a lost race go to the end, as they are now [P28].
            tried = {bucket: round_.rows[bucket] for bucket in shares if bucket in round_.rows}
            rows = {bucket: row for bucket, row in rows.items() if bucket not in tried} | tried

    async def _claim_shares(self, round_: Round, shares: dict[BucketNo, int], rows: Rows) -> None:
        """Write all their hints at once, then send a CAS for each, up to 16 at a time.

        A bucket's granted messages are not lost with another bucket's answer [T22].
        """
        if len(shares) > 1:
            each_s = GRACE_S if round_.claimed else math.inf
            with self._lane.store.session.within(each_s=each_s):
                await self._claimer.hint(shares)

        async def one(bucket: BucketNo) -> Answer:
            return await self._claimer.claim(
                bucket, rows[bucket], shares[bucket], fresh_first=self._choice.is_by_id
            )

        won = await round_.try_all(one, list(shares))
        if self._is_for_program:
            self._choice.learn({bucket: rows[bucket] for bucket in shares}, won, round_.rows)


class Search:
    """The way of one get through one lane, round by round.

    It says "nothing is visible" of a lane only after a round in which nothing changed, in which all
    buckets answered, and in which nothing was passed over from memory (I10).

    Attributes:
        is_over: Whether nothing is visible in the lane.
        failure: The error of a part that has not answered in the last round.
        pause_s: How long to wait before the next round.
        more_at: The time (monotonic) when more than the last round has claimed can be had: at once,
            or when young messages will be ripe. None: it has seen no more.
    """

    def __init__(self, lane: Lane, scanner: Scanner) -> None:
        self.is_over = False
        self.failure: CassieqError | None = None
        self.pause_s = 0.0
        self.more_at: float | None = None
        self._lane = lane
        self._entropy = lane.store.entropy
        self._scanner = scanner
        self._known_away = set(scanner.away)
        self._is_sure = False
        self._in_vain = 0

    def end(self) -> None:
        """Note that nothing of the lane is handed out, because it is paused."""
        self.is_over, self.failure, self.more_at = True, None, None

    def fail(self, error: CassieqError) -> None:
        """Note a round that ended with an error."""
        self.failure = error
        self.pause_s = self._entropy.jitter(PAUSE_S, 0)
        self._is_sure = False

    def note(self, round_: Round, *, is_cut: bool) -> None:
        """Note a round that has claimed nothing.

        Args:
            is_cut: Whether its look has left out buckets.

        Raises:
            CasContention: It lost too many races in a row.
        """
        self.failure, self.pause_s = None, 0.0
        if away := self._scanner.passed_over:
            self._is_sure = False  # nothing is known of buckets that were passed over
            self._note_away(away)
        elif round_.young_for_s is not None:
            self._is_sure = False
            self.pause_s = round_.young_for_s
        elif not (round_.rows or is_cut):
            self.is_over = self._is_sure or not self._scanner.undecided.forget()
            self._is_sure = True
        else:
            self._is_sure = False
            if not round_.has_sealed:
                self._in_vain += 1
                if self._in_vain >= MAX_REFUSALS:
                    raise self._lane.contended(f"what is visible in {self._lane.title}")
                self.pause_s = race_pause_s(self._entropy, self._in_vain)

    def _note_away(self, away: dict[BucketNo, CassieqError]) -> None:
        has_more = not self._known_away >= away.keys()
        self._known_away = set(away)
        if has_more:
            return  # without them it may find messages that come after them
        self.failure = first_of(away)
        self.pause_s = self._entropy.jitter(PAUSE_S, 0)
        self._scanner.forget_away()
        self._known_away.clear()
