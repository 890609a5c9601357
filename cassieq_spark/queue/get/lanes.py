"""Get messages from all lanes of a queue: the highest priority first, the shards in turn.

A queue with one lane is read by that lane's reader alone. Holds I10: a low priority is slow and
never stuck, and a lane that does not answer holds up no other. See docs/design/lanes.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import shared
from cassieq_spark.errors import QueueDeleted
from cassieq_spark.queue.get.claim import Budget
from cassieq_spark.queue.get.reader import Reader
from cassieq_spark.queue.get.rounds import LOOK_S, News, Rounds
from cassieq_spark.queue.schedule import Agenda

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane

    Limits = Mapping[LaneId, int]

NO_LIMITS: Limits = {}

RESTS_FOR_S: Final = 1.0
"""A program leaves a quiet lane alone this long, while others of its priority or of a higher one
fill its gets. A get that finds less asks all (I10)."""


class Readers:
    """One consumer of a queue."""

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
        self._news: News | None = None
        self._rests_for_s = RESTS_FOR_S if run is None else 0.0
        self._looked_at = list(self._readers)

    def lease_as(self, owner: str, visibility_us: int) -> None:
        """Set the owner of the leases that the next gets take, and their duration."""
        self._leases = owner, visibility_us
        for reader in self._readers.values():
            reader.lease_as(owner, visibility_us)

    @property
    def looked_at(self) -> int:
        """The number of lanes that the last get looked at."""
        return len(self._looked_at)

    async def may_find(self, *, at_least: int = 0) -> bool:
        """Whether a get may find something after one that found nothing.

        It costs two cheap reads for each lane that was quiet, except those that rest
        (`RESTS_FOR_S`).

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: The only lane did not answer.
        """
        self._news = await self._ask(await self._tiers(at_least))
        return bool(self._news.awake)

    @property
    def is_quiet(self) -> bool:
        """Whether the last get found nothing, so that the next begins with `may_find`'s reads."""
        readers = [self._readers.get(lane_id) for lane_id in self._looked_at]
        return all(reader is None or reader.quiet.since is not None for reader in readers)

    async def count(self, enough: int, *, at_least: int = 0) -> int | None:
        """Estimate how many messages a get would find, counted up to ``enough``; claim nothing.

        None means that it has found none, but a part did not answer.
        """
        found, is_sure = 0, True
        for lane_id in await self._in_turn(at_least, self._news):
            if found >= enough:
                break
            found += await self._readers[lane_id].count(enough - found)
            is_sure &= self._readers[lane_id].is_sure
        return found if found or is_sure else None

    async def tidy(self, *, at_least: int = 0) -> None:
        """Do the side work of a get that finds nothing, in each lane; see `Reader.tidy`."""
        lanes = await self._in_turn(at_least, self._news)
        for one in await self.lane.store.session.each(lambda at: self._readers[at].tidy(), lanes):
            if one is not None:
                raise one

    async def look_ahead(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        below: Limits = NO_LIMITS,
        at_most_bytes: float | None = None,
    ) -> None:
        """Look now for the messages that the next `get` of as many will claim; claim nothing.

        Raises:
            QueueDeleted: The queue is gone.
        """
        for lane_id in await self._in_turn(at_least):
            reader = self._readers[lane_id]
            if reader.quiet.since is None and await reader.look_ahead(
                at_most, below_id=below.get(lane_id), at_most_bytes=at_most_bytes
            ):
                return

    async def get(
        self,
        at_most: int,
        *,
        at_least: int = 0,
        below: Limits = NO_LIMITS,
        at_most_bytes: float | None = None,
    ) -> list[Claimed]:
        """Claim up to ``at_most`` messages; none only if none is visible in any lane.

        A part is offered to a lower priority first (`fairness`). The rest comes from the highest
        priority that has messages. A lane that does not answer is passed over while others have
        messages.

        Args:
            at_least: Only messages of this priority and higher ones.
            below: Per lane, only ids below this one. If any lane is named, other lanes are left
                out.
            at_most_bytes: About how many bytes, as stored; but at least one message.

        Raises:
            QueueDeleted: The queue is gone.
            StoreTimeout, StoreUnavailable: Nothing was found, and a part did not answer.
            CasAmbiguous, CasContention: See `Reader.get`.
        """
        self._go_on(at_most)
        tiers = await self._tiers(at_least)
        if below:
            tiers = [some for tier in tiers if (some := [at for at in tier if at in below])]
        news, self._news = self._news, None
        self._looked_at = [at for tier in tiers for at in tier]
        if len(self._looked_at) == 1:
            (only,) = self._looked_at
            return await self._readers[only].get(
                at_most, below_id=below.get(only), at_most_bytes=at_most_bytes
            )
        self._first_shard = (self._first_shard + 1) % self.lane.settings.shards
        budget = Budget(messages=at_most, size_bytes=at_most_bytes)
        session = self.lane.store.session
        with session.within(session.left_s()):
            news = news or await self._ask(tiers)
            claimed = await Rounds(self, tiers, below, news, self._lower(tiers)).run(budget)
        self._last = claimed[-1].lane.lane_id if claimed else None
        return claimed

    def reader(self, lane_id: LaneId) -> Reader:
        """Return the reader of one lane."""
        return self._readers[lane_id]

    async def news(self, lanes: list[LaneId]) -> list[LaneId]:
        """Ask each of these lanes, all at once, and return those in which a get may find something.

        A lane without an answer is among them: then the error, if it stays, has a name. A drained
        due lane is asked only every half minute.
        """
        session = self.lane.store.session
        own = set(self.lane.lanes)
        lanes = [at for at in lanes if at in own or not self._readers[at].quiet.is_drained]
        with session.within(each_s=LOOK_S):
            said = await session.each(lambda at: self._readers[at].quiet.may_find(), lanes)
        for one in said:
            if isinstance(one, QueueDeleted):
                raise one
        return [at for at, one in zip(lanes, said, strict=True) if one is not False]

    async def _ask(self, tiers: list[list[LaneId]]) -> News:
        """Ask quiet lanes for news, all at once, except those that rest."""
        if sum(map(len, tiers)) == 1:
            only = tiers[0]
            return News(awake=only if await self._readers[only[0]].quiet.may_find() else [])
        resting: list[LaneId] = []
        has_some = False
        for tier in tiers:
            has_some = has_some or any(self._readers[at].quiet.since is None for at in tier)
            if has_some:
                resting += [
                    at for at in tier if self._readers[at].quiet.is_recent(self._rests_for_s)
                ]
        asked = [at for tier in tiers for at in tier if at not in resting]
        return News(awake=await self.news(asked), resting=resting)

    def _go_on(self, at_most: int) -> None:
        """Begin with the shard of the last get once more, if others are at work in its lane.

        There it has a bucket of its own. In another shard it would meet the others again (ADR 35).
        """
        if self._last in self.lane.lanes and self._readers[self._last].keeps_apart(at_most):
            _, self._first_shard = self.lane.fixed.class_and_shard(self._last)

    async def _in_turn(self, at_least: int, news: News | None = None) -> list[LaneId]:
        """Return the lanes in reading order: per priority, first scheduled ones, oldest first.

        Args:
            news: Only lanes that may have something according to this.
        """
        lanes = [lane_id for tier in await self._tiers(at_least) for lane_id in tier]
        return lanes if news is None else [lane_id for lane_id in lanes if lane_id in news.awake]

    async def _tiers(self, at_least: int) -> list[list[LaneId]]:
        """Return, by priority, the scheduled lanes and the fixed ones, as tiers; none is empty."""
        due = await self._agenda.lanes()
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
        """Draw a lower tier at random, and a random number [U15]."""
        lower = tiers[1:]
        if not lower:
            return [], 0.0
        return lower[shared.randrange(len(lower))], shared.random()
