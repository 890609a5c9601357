"""Get messages from all lanes of a queue: the highest class first, the shards in turn (lanes 3).

A queue with one lane is read by that lane's reader alone. Holds I10: a low class is slow and never
stuck, and a lane that does not answer holds up no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import shared
from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.lanes import offered_below
from cassieq_spark.queue.get.claim import GRACE_S, Budget, give_back
from cassieq_spark.queue.get.reader import Reader
from cassieq_spark.queue.schedule import Agenda

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.get.search import Search
    from cassieq_spark.queue.lane import Lane

    Limits = Mapping[LaneId, int]

NO_LIMITS: Limits = {}

UNLIMITED: Final = 1 << 31
"""Whoever asks for more messages than this takes all there are: no part of that is offered."""

RESTS_FOR_S: Final = 1.0
"""How long a program does not ask a quiet lane again as long as others of its class or of a higher
one fill its gets. A get that finds less asks all (I10)."""

LOOK_S: Final = 2.0
"""How long the first round waits for each statement, as long as all have answered. Each round that
a lane has not answered doubles it: the store may be slow."""

LOOK_AGAIN_S: Final = 0.25
"""The same once a lane has not answered: there may be many, and the others' messages wait."""

_logger = get_logger("queue")


class Readers:
    """One consumer of a queue. Not thread-safe."""

    def __init__(self, lane: Lane, *, owner: str, run: UUID | None, visibility_us: int) -> None:
        self.lane = lane
        self._agenda = Agenda(lane)
        self._readers: dict[LaneId, Reader] = {}
        self._make = partial(Reader, run=run)
        self._leases = owner, visibility_us
        self._due: list[Lane] = []
        self._see_to(lane.all)
        # Random, so that consumers which begin together do not all begin in one shard [U15].
        self._first_shard = shared.randrange(lane.settings.shards)
        self._last: LaneId | None = None
        self._news: _News | None = None
        self._rests_for_s = RESTS_FOR_S if run is None else 0.0
        self._looked_at = list(self._readers)

    def lease_as(self, owner: str, visibility_us: int) -> None:
        """Set the owner of the leases that the next gets take, and their duration."""
        self._leases = owner, visibility_us
        for reader in self._readers.values():
            reader.lease_as(owner, visibility_us)

    @property
    def looked_at(self) -> int:
        """How many lanes the last get looked at."""
        return len(self._looked_at)

    def may_find(self, *, at_least: int = 0) -> bool:
        """Whether a get may find something after one that found nothing.

        Two cheap reads for each lane that was quiet, except those that rest (`RESTS_FOR_S`).

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: The only lane did not answer.
        """
        self._news = self._ask(self._tiers(at_least))
        return bool(self._news.awake)

    @property
    def is_quiet(self) -> bool:
        """Whether the last get found nothing, so that the next begins with `may_find`'s reads."""
        readers = [self._readers.get(lane_id) for lane_id in self._looked_at]
        return all(reader is None or reader.is_quiet for reader in readers)

    def count(self, enough: int, *, at_least: int = 0) -> int | None:
        """About how many messages a get would find, counted up to ``enough``; claims nothing.

        None: it has found none, but a part did not answer.
        """
        found, is_sure = 0, True
        for lane_id in self._in_turn(at_least, self._news):
            if found >= enough:
                break
            found += self._readers[lane_id].count(enough - found)
            is_sure &= self._readers[lane_id].is_sure
        return found if found or is_sure else None

    def tidy(self, *, at_least: int = 0) -> None:
        """Do in each lane what a get that finds nothing does besides; see `Reader.tidy`."""
        lanes = self._in_turn(at_least, self._news)
        for one in self.lane.store.session.each(lambda at: self._readers[at].tidy(), lanes):
            if one is not None:
                raise one

    def look_ahead(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        below: Limits = NO_LIMITS,
        at_most_bytes: float | None = None,
    ) -> None:
        """Look now for what the next `get` of as much will claim; claims nothing.

        Raises:
            QueueDeleted: The queue is gone.
        """
        for lane_id in self._in_turn(at_least):
            reader = self._readers[lane_id]
            if not reader.is_quiet and reader.look_ahead(
                at_most, below_id=below.get(lane_id), at_most_bytes=at_most_bytes
            ):
                return

    def get(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        below: Limits = NO_LIMITS,
        at_most_bytes: float | None = None,
    ) -> list[Claimed]:
        """Claim up to ``at_most`` messages; none only if none is visible in any lane.

        A part is offered to a lower class first (`fairness`). The rest comes from the highest class
        that has something. A lane that does not answer is passed over while others have messages.

        Args:
            at_least: Only messages of this class and higher ones.
            below: Per lane, only ids below this one. If there are any, no lane that is not named.
            at_most_bytes: About how many bytes, as stored; one message at least.

        Raises:
            QueueDeleted: The queue is gone.
            StoreTimeout, StoreUnavailable: Nothing was found, and a part did not answer.
            CasAmbiguous, CasContention: See `Reader.get`.
        """
        self._go_on(at_most)
        tiers = self._tiers(at_least)
        if below:
            tiers = [some for tier in tiers if (some := [at for at in tier if at in below])]
        news, self._news = self._news, None
        self._looked_at = [at for tier in tiers for at in tier]
        if len(self._looked_at) == 1:
            (only,) = self._looked_at
            return self._readers[only].get(
                at_most, below_id=below.get(only), at_most_bytes=at_most_bytes
            )
        self._first_shard = (self._first_shard + 1) % self.lane.settings.shards
        budget = Budget(messages=at_most, size_bytes=at_most_bytes)
        session = self.lane.store.session
        with session.within(session.left_s()):
            news = news or self._ask(tiers)
            claimed = _Get(self, tiers, below, news).run(budget, self._lower(tiers))
        self._last = claimed[-1].lane.lane_id if claimed else None
        return claimed

    def reader(self, lane_id: LaneId) -> Reader:
        """The reader of one lane."""
        return self._readers[lane_id]

    def news(self, lanes: list[LaneId]) -> list[LaneId]:
        """Those of these lanes in which a get may find something; each is asked, all at once.

        A lane without an answer is among them: then the error, if it stays, has a name. A due lane
        that is drained is asked each half minute only.
        """
        session = self.lane.store.session
        own = set(self.lane.lanes)
        lanes = [at for at in lanes if at in own or not self._readers[at].is_drained]
        with session.within(each_s=LOOK_S):
            said = session.each(lambda at: self._readers[at].may_find(), lanes)
        for one in said:
            if isinstance(one, QueueDeleted):
                raise one
        return [at for at, one in zip(lanes, said, strict=True) if one is not False]

    def _ask(self, tiers: list[list[LaneId]]) -> _News:
        """Ask quiet lanes for news, all at once, except those that rest."""
        if sum(map(len, tiers)) == 1:
            only = tiers[0]
            return _News(awake=only if self._readers[only[0]].may_find() else [])
        resting: list[LaneId] = []
        has_some = False
        for tier in tiers:
            has_some = has_some or not all(self._readers[at].is_quiet for at in tier)
            if has_some:
                resting += [at for at in tier if self._readers[at].was_quiet(self._rests_for_s)]
        asked = [at for tier in tiers for at in tier if at not in resting]
        return _News(awake=self.news(asked), resting=resting)

    def _go_on(self, at_most: int) -> None:
        """Begin with the shard of the last get once more, if others are at work in its lane.

        There it has a bucket of its own. In another one it would meet them again (ADR 35).
        """
        if self._last in self.lane.lanes and self._readers[self._last].keeps_apart(at_most):
            _, self._first_shard = self.lane.fixed.class_and_shard(self._last)

    def _in_turn(self, at_least: int, news: _News | None = None) -> list[LaneId]:
        """The lanes as they are read: in each class what was scheduled, oldest period first.

        Args:
            news: Only those that may have something by this.
        """
        lanes = [lane_id for tier in self._tiers(at_least) for lane_id in tier]
        return lanes if news is None else [lane_id for lane_id in lanes if lane_id in news.awake]

    def _tiers(self, at_least: int) -> list[list[LaneId]]:
        """The lanes of each class that were scheduled, and the fixed ones; none is empty."""
        due = self._agenda.lanes()
        if due is not self._due:
            self._see_to([*self.lane.all, *due])
            self._due = due
        fixed = self.lane.fixed
        turn = fixed.in_turn(self._first_shard, at_least=at_least)
        tiers: list[list[LaneId]] = []
        for at in range(0, len(turn), fixed.shards):
            priority = fixed.priorities - 1 - at // fixed.shards
            tiers.append([one.lane_id for one in due if one.priority == priority])
            tiers.append(turn[at : at + fixed.shards])
        return [tier for tier in tiers if tier]

    def _see_to(self, lanes: list[Lane]) -> None:
        """Keep a reader for each of these lanes and for no other."""
        owner, visibility_us = self._leases
        known = self._readers
        self._readers = {
            one.lane_id: known.get(one.lane_id)
            or self._make(one, owner=owner, visibility_us=visibility_us)
            for one in lanes
        }

    def _lower(self, tiers: list[list[LaneId]]) -> tuple[list[LaneId], float]:
        """A lower class, or what was not scheduled, drawn at random; and a coin [U15]."""
        lower = tiers[1:]
        if not lower:
            return [], 0.0
        return lower[shared.randrange(len(lower))], shared.random()


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """Where a get may find something; and quiet lanes that were not asked again."""

    awake: list[LaneId]
    resting: list[LaneId] = field(default_factory=list)


class _Get:
    """One get over several lanes."""

    def __init__(
        self, readers: Readers, tiers: list[list[LaneId]], below: Limits, news: _News
    ) -> None:
        self._readers = readers
        self._lane = readers.lane
        self._tiers = tiers
        self._below = below
        self._awake = news.awake
        self._resting = news.resting
        self._searches: dict[LaneId, Search] = {}
        self._has_failed = False
        self._patience = 1.0
        self._claimed: list[Claimed] = []
        self._over_at = inf

    def run(self, budget: Budget, lower: tuple[list[LaneId], float]) -> list[Claimed]:
        """Go round the lanes until something is claimed, or nothing is visible in any.

        No lane is waited for while another may have something: each round takes what can be had at
        once, and the pause between two is for all lanes together. One deadline is for all of them.
        """
        clock = self._lane.clock
        until = clock.monotonic() + self._lane.store.session.left_s()
        try:
            self._offer(budget, *lower)
            while True:
                self._go_round(replace(budget))
                if self._claimed:
                    return self._claimed
                open_ = [one for one in self._searches.values() if not one.is_over]
                failures = [one.failure for one in open_ if one.failure is not None]
                if not open_:
                    return []
                if failures and clock.monotonic() >= until:
                    raise failures[0]
                clock.wait(min(one.pause_s for one in open_))
                # What was quiet may have something by now, where a lane keeps this get waiting.
                lanes = [lane_id for tier in self._tiers for lane_id in tier]
                woken = self._readers.news(lanes) if failures else []
                self._awake = [at for at in lanes if at in woken or self._may_have_some(at)]
                self._patience *= 2 if failures else 1
        except CassieqError:
            give_back(self._claimed)  # nobody gets to see them [T22]
            raise

    def _may_have_some(self, lane_id: LaneId) -> bool:
        """Whether a lane may have something, after the rounds so far (I10)."""
        search = self._searches.get(lane_id)
        return lane_id in self._awake if search is None else not search.is_over

    def _offer(self, budget: Budget, lanes: list[LaneId], coin: float) -> None:
        """Offer a part of the claim to lanes of a lower class first."""
        fairness = self._lane.settings.fairness
        offered = Budget(messages=budget.messages, size_bytes=budget.size_bytes)
        if budget.messages < UNLIMITED:
            offered.messages = offered_below(budget.messages, fairness, coin)
        if budget.size_bytes is not None:
            offered.size_bytes = budget.size_bytes * fairness
        is_part = budget.messages < UNLIMITED or budget.size_bytes is not None
        if not fairness or not is_part:
            return
        for lane_id in lanes:
            if lane_id in self._awake and not offered.is_full:
                self._step(lane_id, offered)
        budget.take_claimed(self._claimed)

    def _go_round(self, budget: Budget) -> None:
        for tier in self._tiers:
            if not self._go_through([at for at in tier if at in self._awake], budget):
                return
            # No lower class before what rests in this one.
            if budget.is_full or not self._go_through(self._wake(tier), budget):
                return

    def _go_through(self, lanes: list[LaneId], budget: Budget) -> bool:
        """Claim from these lanes; return whether to go on with others."""
        for lane_id in lanes:
            if budget.is_full or self._lane.clock.monotonic() >= self._over_at:
                return False
            if not self._step(lane_id, budget) and self._claimed:
                return False  # leases run: they do not wait for what does not answer
            if self._claimed:
                # Buckets that a lane passes over take time as well.
                self._over_at = min(self._over_at, self._lane.clock.monotonic() + GRACE_S)
        return True

    def _wake(self, tier: list[LaneId]) -> list[LaneId]:
        """Ask the lanes of a tier that rest, as the others have too little."""
        resting = [at for at in tier if at in self._resting]
        self._resting = [at for at in self._resting if at not in resting]
        with self._lane.store.session.within(GRACE_S if self._claimed else inf):
            woken = self._readers.news(resting)
        self._awake = [*self._awake, *woken]
        return woken

    def _step(self, lane_id: LaneId, budget: Budget) -> bool:
        """Claim from one lane what can be had at once; return whether it has answered."""
        reader = self._readers.reader(lane_id)
        search = self._searches.get(lane_id)
        if search is None or search.is_over:
            search = self._searches[lane_id] = reader.search()
        each_s = self._patience * (LOOK_AGAIN_S if self._has_failed else LOOK_S)
        in_all_s = GRACE_S if self._claimed else inf
        try:
            with self._lane.store.session.within(in_all_s, each_s=each_s):
                self._claimed += reader.go_round(
                    search, budget, self._below.get(lane_id), waits=False
                )
        except QueueDeleted:
            raise
        except CassieqError as error:
            self._has_failed = True
            search.fail(error)
            queue, told = self._lane.queue, str(error)
            event(_logger, "lane_passed_over", queue=queue, lane=str(lane_id), error=told)
            return False
        return True
