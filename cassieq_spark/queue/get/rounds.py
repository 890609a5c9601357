"""`Rounds` is one get over several lanes, round by round, until there is something to hand out.

It holds the rules of docs/design/lanes.md on priorities and young messages, and I10: a lane that
does not answer holds up no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.lanes import held_until, offered_below
from cassieq_spark.queue.get.claim import GRACE_S, Budget, give_back

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.get.lanes import Limits, Readers
    from cassieq_spark.queue.get.search import Search

UNLIMITED: Final = 1 << 31
"""A call that asks for more messages than this takes all there are, so no part of it is offered to
a lower priority."""

LOOK_S: Final = 2.0
"""The first round waits this long for each statement, as long as all have answered. Each round in
which a lane has not answered doubles it: the store may be slow."""

LOOK_AGAIN_S: Final = 0.25
"""The same limit after a lane has not answered: there may be many such lanes, and messages of the
others wait."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Lanes in which a get may find something; and quiet lanes that were not asked again."""

    awake: list[LaneId]
    resting: list[LaneId] = field(default_factory=list)


class Rounds:
    """One get over several lanes.

    Args:
        tiers: The lanes of each priority; those of scheduled messages come first.
        lower: The lanes that a part of the get is offered to, and the random number that rounds
            this part.
    """

    def __init__(
        self,
        readers: Readers,
        tiers: list[list[LaneId]],
        below: Limits,
        news: News,
        lower: tuple[list[LaneId], float],
    ) -> None:
        self._readers = readers
        self._lane = readers.lane
        self._tiers = tiers
        self._below = below
        self._awake = news.awake
        self._resting = news.resting
        self._lower, self._coin = lower
        self._searches: dict[LaneId, Search] = {}
        self._has_failed = False
        self._patience = 1.0
        self._claimed: list[Claimed] = []
        self._of_offer = 0
        self._owed: list[LaneId] = []
        self._asked: set[LaneId] = set()
        # The state before this get: an offer looks only for a part of it.
        self._new = {at for one in tiers for at in one if not readers.reader(at).has_looked}
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
        until = clock.monotonic() + self._lane.store.session.left_s()
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
        offered = Budget(messages=budget.messages, size_bytes=budget.size_bytes)
        if budget.messages < UNLIMITED:
            offered.messages = offered_below(budget.messages, fairness, self._coin)
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
                if offered.is_full:
                    # It has claimed no more than the offer, so it says nothing of the rest [lanes].
                    self._asked.discard(lane_id)
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
            await session.each(
                lambda at: self._readers.reader(at).see(budget, self._below.get(at)), new
            )
        return held if awake else None

    def _is_asked(self, lane_id: LaneId) -> bool:
        """Whether this round goes through a lane: if it was held, only if more can be had there."""
        return lane_id not in self._asked or bool(self._young([lane_id]))

    async def _go_through(self, lanes: list[LaneId], budget: Budget) -> bool:
        """Claim from these lanes. Return whether to go on with others."""
        for lane_id in filter(self._is_asked, lanes):
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
        reader = self._readers.reader(lane_id)
        search = self._searches.get(lane_id)
        if search is None or search.is_over:
            search = self._searches[lane_id] = reader.search()
        each_s = self._patience * (LOOK_AGAIN_S if self._has_failed else LOOK_S)
        in_all_s = GRACE_S if self._claimed else inf
        try:
            with self._lane.store.session.within(in_all_s, each_s=each_s):
                self._claimed += await reader.go_round(
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
