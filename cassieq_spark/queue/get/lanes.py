"""Get messages from all lanes of a queue: the highest class first, the shards in turn (lanes 3).

A queue with one lane is read by that lane's reader alone. Holds I10: a low class is slow and never
stuck, and a lane that does not answer holds up no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.entropy import generator
from cassieq_spark.errors import CassieqError, QueueDeleted, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.lanes import offered_below
from cassieq_spark.queue.get.claim import PATIENT_GRACE_S, Budget, give_back
from cassieq_spark.queue.get.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane

    Limits = Mapping[LaneId, int]

NO_LIMITS: Limits = {}

_logger = get_logger("queue")


class Readers:
    """One consumer of a queue. Not thread-safe."""

    def __init__(self, lane: Lane, *, owner: str, run: UUID | None, visibility_us: int) -> None:
        self.lane = lane
        self._readers = {
            one.lane_id: Reader(one, owner=owner, run=run, visibility_us=visibility_us)
            for one in lane.all
        }
        self._random = generator()
        # Random, so that consumers which begin together do not all begin in one shard [U15].
        self._first_shard = self._random.randrange(lane.settings.shards)
        self._awake: list[LaneId] | None = None

    def lease_as(self, owner: str, visibility_us: int) -> None:
        """Set the owner of the leases that the next gets take, and their duration."""
        for reader in self._readers.values():
            reader.lease_as(owner, visibility_us)

    def may_find(self, *, at_least: int = 0) -> bool:
        """Whether a get may find something after one that found nothing; two cheap reads a lane.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: The only lane did not answer.
        """
        order = self._in_turn(at_least)
        if len(order) == 1:
            awake = order if self._readers[order[0]].may_find() else []
        else:
            said = self.lane.store.session.each(lambda at: self._readers[at].may_find(), order)
            for one in said:
                if isinstance(one, QueueDeleted):
                    raise one
            # A lane without an answer is looked at: then the error, if it stays, has a name.
            awake = [at for at, one in zip(order, said, strict=True) if one is not False]
        self._awake = awake
        return bool(awake)

    @property
    def is_quiet(self) -> bool:
        """Whether the last get found nothing, so that the next begins with `may_find`'s reads."""
        return all(reader.is_quiet for reader in self._readers.values())

    def count(self, enough: int, *, at_least: int = 0) -> int:
        """About how many messages a get would find, counted up to ``enough``; claims nothing."""
        found = 0
        for lane_id in self._in_turn(at_least):
            if found >= enough:
                break
            found += self._readers[lane_id].count(enough - found)
        return found

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
            below: Per lane, only ids below this one.
            at_most_bytes: About how many bytes, as stored; one message at least.

        Raises:
            QueueDeleted: The queue is gone.
            StoreTimeout, StoreUnavailable: Nothing was found, and a part did not answer.
            CasAmbiguous, CasContention: See `Reader.get`.
        """
        order = self._in_turn(at_least)
        awake, self._awake = self._awake, None
        if len(order) == 1:
            return self._readers[order[0]].get(
                at_most, below_id=below.get(order[0]), at_most_bytes=at_most_bytes
            )
        if awake is None:
            self.may_find(at_least=at_least)
            awake, self._awake = self._awake, None
        order = [lane_id for lane_id in order if lane_id in (awake or ())]
        self._first_shard = (self._first_shard + 1) % self.lane.settings.shards
        budget = Budget(messages=at_most, size_bytes=at_most_bytes)
        got = _Got(budget, below)
        try:
            self._offer_below(got, order, at_least)
            # First what can be had at once, from any lane. Only if there is nothing is it worth
            # waiting for a bucket that is young, or that does not answer.
            for is_patient in (False, True):
                for lane_id in order:
                    if budget.is_full or (is_patient and got.claimed):
                        break
                    got.add(self._readers[lane_id], budget.messages, is_patient=is_patient)
        except CassieqError:
            give_back(got.claimed)  # nobody gets to see them [T22]
            raise
        if got.failed and not got.claimed:
            raise min(got.failed.values(), key=lambda error: isinstance(error, StoreError))
        return got.claimed

    def _in_turn(self, at_least: int) -> list[LaneId]:
        return self.lane.fixed.in_turn(self._first_shard, at_least=at_least)

    def _offer_below(self, got: _Got, order: list[LaneId], at_least: int) -> None:
        """Offer a part of a claim to a lower class, drawn by a coin [U15]."""
        fixed = self.lane.fixed
        lower = fixed.priorities - 1 - at_least
        fairness = self.lane.settings.fairness
        if lower < 1 or not fairness:
            return
        offered = offered_below(got.budget.messages, fairness, self._random.random())
        drawn = at_least + self._random.randrange(lower)
        of_class = [at for at in order if fixed.class_and_shard(at)[0] == drawn]
        for lane_id in of_class:
            if offered <= 0:
                break
            offered -= got.add(self._readers[lane_id], offered, is_patient=False)


class _Got:
    """What one get has claimed so far, and which lanes have failed."""

    def __init__(self, budget: Budget, below: Limits) -> None:
        self.budget = budget
        self.claimed: list[Claimed] = []
        self.failed: dict[LaneId, CassieqError] = {}
        self._below = below

    def add(self, reader: Reader, at_most: int, *, is_patient: bool) -> int:
        """Claim from one lane; return how many messages."""
        lane = reader.lane
        more: list[Claimed] = []
        try:
            more = self._within(
                lane,
                lambda: reader.get(
                    at_most,
                    below_id=self._below.get(lane.lane_id),
                    at_most_bytes=self.budget.size_bytes,
                    is_patient=is_patient,
                ),
            )
        except QueueDeleted:
            raise
        except CassieqError as error:
            self.failed[lane.lane_id] = error
            told = str(error)
            event(_logger, "lane_passed_over", queue=lane.queue, lane=str(lane.lane_id), error=told)
            return 0
        self.failed.pop(lane.lane_id, None)
        self.claimed += more
        self.budget.take_claimed(more)
        return sum(one.lease.runs.count for one in more)

    def _within(self, lane: Lane, get: Callable[[], list[Claimed]]) -> list[Claimed]:
        """Get; once there is something, no lane may keep it waiting while its leases run."""
        if not self.claimed:
            return get()
        with lane.store.session.within(each_s=PATIENT_GRACE_S):
            return get()
