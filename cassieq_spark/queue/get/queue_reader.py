"""Get messages from all lanes of a queue: the highest priority first, the shards in turn.

`QueueReader` is one consumer of a queue; a queue with one lane is read by that lane's reader alone.
`Rounds` is one get over several lanes, round by round, until there is something to hand out. It
holds the rules of docs/design/lanes.md on priorities and young messages. Holds I10: a low priority
is slow and never stuck, and a lane that does not answer holds up no other.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from math import inf
from typing import Final, TypeVar

from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import held_until, offered_below
from cassieq_spark.queue.get.claim import GRACE_S, Budget, Claimed, Holder, give_back
from cassieq_spark.queue.get.reader import Reader, Search
from cassieq_spark.queue.lane import Lane, LanePaused
from cassieq_spark.queue.pause import still_paused
from cassieq_spark.queue.schedule import DueLaneCache

News = tuple[list[LaneId], list[LaneId]]
"""Lanes in which a get may find something; and quiet lanes that were not asked again."""

RESTS_FOR_S: Final = 1.0
"""A program leaves a quiet lane alone this long, while others of its priority or of a higher one
fill its gets. A get that finds less asks all (I10)."""

UNLIMITED: Final = 1 << 31
"""A call that asks for more messages than this takes all there are, so no part of it is offered to
a lower priority."""

ROUND_S: Final = 2.0
"""The first round waits this long for each statement, as long as all have answered: one lane
without an answer keeps the messages of others no longer. Each round in which a lane has not
answered, and none has messages, doubles it: the store may be slow."""

ROUND_AGAIN_S: Final = 0.25
"""The same limit after a lane has not answered: there may be many such lanes, and messages of the
others wait."""

T = TypeVar("T")
U = TypeVar("U")

_logger = get_logger("queue")


class QueueReader:
    """A consumer of a queue.

    Attributes:
        holder: The owner of its leases, which may change between gets.
        readers: Its reader of each lane.
        looked_at: The lanes that the last get looked at.
    """

    def __init__(self, lane: Lane, holder: Holder) -> None:
        self.lane = lane
        self.holder = holder
        self.readers: dict[LaneId, Reader] = {}
        self._due_lanes = DueLaneCache(lane)
        self._due: list[Lane] = []
        self._see_to(lane.all)
        # Random, so that consumers which begin together do not all begin in one shard [U15].
        self._first_shard = lane.store.entropy.rng.randrange(lane.settings.shards)
        self._last: LaneId | None = None
        self._paused: set[int] = set()
        self._news: News | None = None
        self._rests_for_s = RESTS_FOR_S if holder.is_program else 0.0
        self.looked_at = list(self.readers)

    async def may_find(self, *, at_least: int = 0) -> bool:
        """Whether a get may find something after one that found nothing.

        It costs two cheap reads for each lane that was quiet, except those that rest
        (`RESTS_FOR_S`).

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: The only lane did not answer.
        """
        self._news = await self._ask(await self._tiers(at_least))
        return bool(self._news[0])

    @property
    def is_quiet(self) -> bool:
        """Whether the last get found nothing, so that the next begins with `may_find`'s reads."""
        readers = [self.readers.get(lane_id) for lane_id in self.looked_at]
        return not self._paused and all(
            reader is None or reader.since is not None for reader in readers
        )

    async def count(self, enough: int, *, at_least: int = 0) -> int | None:
        """Estimate how many messages a get would find, counted up to ``enough``; claim nothing.

        None means that it has found none, but a part did not answer.
        """
        found, is_sure = 0, True
        for lane_id in await self._in_turn(at_least, self._news):
            if found >= enough:
                break
            found += await self.unless_paused(
                lane_id, self.readers[lane_id].count(enough - found), otherwise=0
            )
            is_sure &= self.readers[lane_id].is_sure
        return found if found or is_sure else None

    async def tidy(self, *, at_least: int = 0) -> None:
        """Do the side work of a get that finds nothing, in each lane; see `Reader.tidy`."""
        lanes = await self._in_turn(at_least, self._news)
        for one in await self.lane.store.session.each(lambda at: self.readers[at].tidy(), lanes):
            if one is not None and not isinstance(one, LanePaused):
                raise one

    async def look_ahead(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        at_most_bytes: float | None = None,
    ) -> None:
        """Look now for the messages that the next `get` of as many will claim; claim nothing.

        Raises:
            QueueDeleted: The queue is gone.
        """
        for lane_id in await self._in_turn(at_least):
            reader = self.readers[lane_id]
            if reader.since is None:
                look = reader.look_ahead(at_most, at_most_bytes=at_most_bytes)
                if await self.unless_paused(lane_id, look, otherwise=False):
                    return

    async def get(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        at_most_bytes: float | None = None,
    ) -> list[Claimed]:
        """Claim up to ``at_most`` messages; none only if none is visible in any lane.

        A part is offered to a lower priority first (`fairness`). The rest comes from the highest
        priority that has messages. A lane that does not answer is passed over while others have
        messages.

        Args:
            at_least: Only messages of this priority and higher ones.
            at_most_bytes: About how many bytes, as stored; but at least one message.

        Raises:
            QueueDeleted: The queue is gone.
            StoreTimeout, StoreUnavailable: Nothing was found, and a part did not answer.
            CasAmbiguous, CasContention: See `Reader.get`.
        """
        self._go_on(at_most)
        tiers = await self._tiers(at_least, asks=self._news is None)
        news, self._news = self._news, None
        self.looked_at = [at for tier in tiers for at in tier]
        if len(self.looked_at) == 1:
            (only,) = self.looked_at
            get = self.readers[only].get(at_most, at_most_bytes=at_most_bytes)
            return await self.unless_paused(only, get, otherwise=[])
        self._first_shard = (self._first_shard + 1) % self.lane.settings.shards
        budget = Budget(messages=at_most, size_bytes=at_most_bytes)
        session = self.lane.store.session
        # What it lingers is its own pause: nobody was asked, so it leaves as much time as before.
        with session.within(session.left_s() + self.lane.settings.linger_s):
            news = news or await self._ask(tiers)
            claimed = await Rounds(self, tiers, news).run(budget)
        self._last = claimed[-1].lane.lane_id if claimed else None
        return claimed

    async def unless_paused(self, lane_id: LaneId, step: Awaitable[T], *, otherwise: U) -> T | U:
        """Take a step in a lane. If it is paused, note that, and return ``otherwise``.

        The next looks leave the lanes of its priority out, until its register says that they go on.
        """
        try:
            return await step
        except LanePaused:
            self._paused.add(self.readers[lane_id].lane.priority)
            return otherwise

    def is_paused(self, lane_id: LaneId) -> bool:
        """Whether its priority is known to be paused."""
        return bool(self._paused) and self.readers[lane_id].lane.priority in self._paused

    async def news(self, lanes: list[LaneId]) -> list[LaneId]:
        """Ask each of these lanes, all at once, and return those in which a get may find something.

        A lane without an answer is among them: then the error, if it stays, has a name. A drained
        due lane is asked only every half minute.
        """
        session = self.lane.store.session
        own = set(self.lane.lanes)
        lanes = [at for at in lanes if at in own or not self.readers[at].is_drained]
        with session.within(each_s=ROUND_S):
            said = await session.each(lambda at: self.readers[at].may_find(), lanes)
        for one in said:
            if isinstance(one, QueueDeleted):
                raise one
        return [at for at, one in zip(lanes, said, strict=True) if one is not False]

    async def _ask(self, tiers: list[list[LaneId]]) -> News:
        """Ask quiet lanes for news, all at once, except those that rest."""
        if sum(map(len, tiers)) == 1:
            only = tiers[0]
            return only if await self.readers[only[0]].may_find() else [], []
        resting: list[LaneId] = []
        has_some = False
        for tier in tiers:
            has_some = has_some or any(self.readers[at].since is None for at in tier)
            if has_some:
                resting += [at for at in tier if self.readers[at].rests(self._rests_for_s)]
        asked = [at for tier in tiers for at in tier if at not in resting]
        return await self.news(asked), resting

    def _go_on(self, at_most: int) -> None:
        """Begin with the shard of the last get once more, if others are at work in its lane.

        There it has a bucket of its own. In another shard it would meet the others again (ADR 35).
        """
        if self._last in self.lane.lanes and self.readers[self._last].keeps_apart(at_most):
            _, self._first_shard = self.lane.fixed.class_and_shard(self._last)

    async def _in_turn(self, at_least: int, news: News | None = None) -> list[LaneId]:
        """Return the lanes in reading order: per priority, first scheduled ones, oldest first.

        Args:
            news: Only lanes that may have something according to this.
        """
        lanes = [lane_id for tier in await self._tiers(at_least) for lane_id in tier]
        return lanes if news is None else [lane_id for lane_id in lanes if lane_id in news[0]]

    async def _tiers(self, at_least: int, *, asks: bool = True) -> list[list[LaneId]]:
        """Return, by priority, the scheduled lanes and the fixed ones, as tiers.

        None is empty, and those of a paused priority are left out.

        Args:
            asks: Whether to read if it goes on; otherwise this call has just done so.
        """
        if asks and any(one >= at_least for one in self._paused):
            self._paused = await still_paused(self.lane, self._paused)
        due = await self._due_lanes.lanes()
        if due is not self._due:
            self._see_to([*self.lane.all, *due])
            self._due = due
        fixed = self.lane.fixed
        turn = fixed.in_turn(self._first_shard, at_least=at_least)
        tiers: list[list[LaneId]] = []
        for at in range(0, len(turn), fixed.shards):
            priority = fixed.priorities - 1 - at // fixed.shards
            if priority in self._paused:
                continue
            tiers.append([one.lane_id for one in due if one.priority == priority])
            tiers.append(turn[at : at + fixed.shards])
        if (below := self.holder.below) is not None:
            tiers = [[at for at in tier if at in below] for tier in tiers]
        return [tier for tier in tiers if tier]

    def _see_to(self, lanes: list[Lane]) -> None:
        """Keep a reader for each of these lanes and for no other."""
        known = self.readers
        self.readers = {
            one.lane_id: known.get(one.lane_id) or Reader(one, self.holder) for one in lanes
        }


class Rounds:
    """A get over several lanes.

    Args:
        tiers: The lanes of each priority; those of scheduled messages come first.
    """

    def __init__(self, readers: QueueReader, tiers: list[list[LaneId]], news: News) -> None:
        self._readers = readers
        self._lane = readers.lane
        self._tiers = tiers
        self._awake, self._resting = news
        # A part of the get is offered to one lower tier, drawn at random [U15].
        lower = tiers[1:]
        self._rng = self._lane.store.entropy.rng
        self._lower = lower[self._rng.randrange(len(lower))] if lower else []
        self._searches: dict[LaneId, Search] = {}
        self._has_failed = False
        self._patience = 1.0
        self._claimed: list[Claimed] = []
        self._of_offer = 0
        self._owed: list[LaneId] = []
        self._asked: set[LaneId] = set()
        # The state before this get: an offer looks only for a part of it.
        self._new = {at for one in tiers for at in one if not readers.readers[at].has_looked}
        self._is_held = False
        self._over_at = inf
        self._held_at_most_until = inf

    async def run(self, whole: Budget) -> list[Claimed]:
        """Go round the lanes until something is claimed, or nothing is visible in any.

        No lane is waited for while another may have messages. Each round takes the messages that
        can be had at once, and the pause between two rounds is for all lanes together. Only young
        messages of a higher priority hold a lower one back (`held_until`). One deadline is for all
        lanes.
        """
        clock = self._lane.clock
        linger_s = self._lane.settings.linger_s
        until = clock.monotonic() + self._lane.store.session.left_s() + linger_s
        offered = self._offered(whole)
        try:
            while True:
                held = await self._go_round(whole, offered)
                self._is_held = held is not None
                if held is not None:
                    await clock.sleep(held - clock.monotonic())
                    continue
                if self._claimed:
                    return self._claimed
                open_ = [one for one in self._searches.values() if not one.is_over]
                failures = [one.failure for one in open_ if one.failure is not None]
                if not open_:
                    return []
                if failures and clock.monotonic() >= until:
                    raise failures[0]
                await clock.sleep(min(one.pause_s for one in open_))
                # While a lane keeps this get waiting, messages may have come to lanes that were
                # quiet.
                lanes = [lane_id for tier in self._tiers for lane_id in tier]
                woken = await self._readers.news(lanes) if failures else []
                self._awake = [at for at in lanes if at in woken or self._may_have_some(at)]
                self._patience *= 2 if failures else 1
        except CassieqError:
            await give_back(self._claimed)  # no consumer gets to see them [T22]
            raise

    def _may_have_some(self, lane_id: LaneId) -> bool:
        """Whether a lane may have messages, after the rounds so far (I10)."""
        search = self._searches.get(lane_id)
        return lane_id in self._awake if search is None else not search.is_over

    def _offered(self, budget: Budget) -> Budget:
        """Return the part of the get that is offered to a lower priority."""
        fairness = self._lane.settings.fairness
        offered = replace(budget)
        if budget.messages < UNLIMITED:
            offered.messages = offered_below(budget.messages, fairness, self._rng.random())
        if budget.size_bytes is not None:
            offered.size_bytes = budget.size_bytes * fairness
        is_part = budget.messages < UNLIMITED or budget.size_bytes is not None
        if not fairness or not is_part:
            offered.messages = 0
        return offered

    async def _go_round(self, whole: Budget, offered: Budget) -> float | None:
        """Take messages that can be had at once.

        Return until when the rest of the get is held back.
        """
        if not self._is_held:
            self._asked = set()
        await self._offer(offered)
        budget = replace(whole)
        budget.take_claimed(self._claimed)
        # However large it is, the first message of a higher priority is not kept out by the offer.
        budget.is_untouched = whole.is_untouched and len(self._claimed) == self._of_offer
        owed = self._young(self._owed)
        if owed:
            if whole.messages < UNLIMITED:
                budget.messages -= min(offered.messages, budget.messages)
            if budget.size_bytes is not None and offered.size_bytes is not None:
                budget.size_bytes -= offered.size_bytes
        for at, tier in enumerate(self._tiers):
            if not await self._go_through([at for at in tier if at in self._awake], budget):
                break
            # No lower priority comes before the resting lanes of this one.
            if budget.is_full or not await self._go_through(await self._wake(tier), budget):
                break
            held = await self._hold(tier, self._tiers[at + 1 :], budget)
            if held is not None:
                return held
        else:
            return self._held_until(owed)
        # If a lane was left out, for lack of time or of an answer, the get ends.
        return self._held_until(owed) if budget.is_full else None

    async def _offer(self, offered: Budget) -> None:
        """Offer a part to lanes of a lower priority.

        They wait for it if they are first looked at.
        """
        before = len(self._claimed)
        for lane_id in self._lower:
            is_due = not self._is_held or bool(self._young([lane_id]))
            has_room = not offered.is_full
            if lane_id in self._awake and is_due and has_room:
                await self._step(lane_id, offered)
                self._owed += [lane_id] if lane_id in self._new else []
        self._of_offer += len(self._claimed) - before
        if offered.is_full:
            self._owed = []

    def _young(self, lanes: list[LaneId]) -> list[float]:
        """Return the times when more can be had in these lanes, by the rounds so far."""
        searches = [self._searches.get(lane_id) for lane_id in lanes]
        return [one.more_at for one in searches if one is not None and one.more_at is not None]

    def _held_until(self, more_at: list[float]) -> float | None:
        now = self._lane.clock.monotonic()
        until = min(self._over_at, self._held_at_most_until, now + GRACE_S)
        held = held_until(more_at, until=until)
        if held is not None:
            self._held_at_most_until = until
        return held

    async def _hold(
        self, tier: list[LaneId], lower: list[list[LaneId]], budget: Budget
    ) -> float | None:
        """Return until when young messages hold back lower priorities; None if they go on.

        Lanes that this consumer has never looked at are looked at now: for the consumer, their
        messages are no older than its first look [R9].
        """
        below = [lane_id for one in lower for lane_id in one]
        held = None if budget.is_full else self._held_until(self._young(tier))
        if held is None or not below:
            return None
        await self._wake(below)
        awake = [at for at in below if self._may_have_some(at)]
        new = [at for at in awake if at in self._new and at not in self._asked]
        self._new -= {*new}
        session = self._lane.store.session
        with session.within(GRACE_S):
            await session.each(lambda at: self._readers.readers[at].see(budget), new)
        return held if awake else None

    async def _go_through(self, lanes: list[LaneId], budget: Budget) -> bool:
        """Claim from these lanes. Return whether to go on with others.

        If this round was held, it goes through a lane again only if more can be had there.
        """
        for lane_id in lanes:
            if lane_id in self._asked and not self._young([lane_id]):
                continue
            if budget.is_full or self._lane.clock.monotonic() >= self._over_at:
                return False
            self._asked.add(lane_id)
            if not await self._step(lane_id, budget) and self._claimed:
                return False  # leases run: they do not wait for a lane that does not answer
            if self._claimed:
                # Buckets that a lane passes over take time as well.
                self._over_at = min(self._over_at, self._lane.clock.monotonic() + GRACE_S)
        return True

    async def _wake(self, lanes: list[LaneId]) -> list[LaneId]:
        """Ask the resting ones of these lanes, because the others have too little."""
        resting = [at for at in lanes if at in self._resting]
        self._resting = [at for at in self._resting if at not in resting]
        with self._lane.store.session.within(GRACE_S if self._claimed else inf):
            woken = await self._readers.news(resting)
        self._awake = [*self._awake, *woken]
        return woken

    async def _step(self, lane_id: LaneId, budget: Budget) -> bool:
        """Claim messages that can be had at once from one lane. Return whether it has answered."""
        reader = self._readers.readers[lane_id]
        search = self._searches.get(lane_id)
        if search is None or search.is_over:
            search = self._searches[lane_id] = reader.search()
        if self._readers.is_paused(lane_id):
            search.end()  # another lane of its priority has just said so
            return True
        each_s = self._patience * (ROUND_AGAIN_S if self._has_failed else ROUND_S)
        in_all_s = GRACE_S if self._claimed else inf
        before = replace(budget)
        try:
            with self._lane.store.session.within(in_all_s, each_s=each_s):
                round_ = reader.go_round(search, budget, waits=False)
                claimed = await self._readers.unless_paused(lane_id, round_, otherwise=None)
        except QueueDeleted:
            raise
        except CassieqError as error:
            self._has_failed = True
            search.fail(error)
            queue, told = self._lane.queue, str(error)
            event(_logger, "lane_passed_over", queue=queue, lane=str(lane_id), error=told)
            return False
        if claimed is None:
            search.end()
            budget.give_back(before)
            return True
        self._claimed += claimed
        if budget.is_full:
            # It was asked for no more, so it has not said what else it has [lanes].
            self._asked.discard(lane_id)
        return True
