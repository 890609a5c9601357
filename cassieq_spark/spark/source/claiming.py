"""Share a micro-batch among the queues of a query: evenly, and what one leaves goes to the others.

Holds I10: each queue has its turn, and one that does not answer holds up no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import CassieqError, QueueDeleted, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.get.claim import Budget, give_back
from cassieq_spark.spark.source.one_queue import ids_by_bucket, messages
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.spark.source.admission import Limits
    from cassieq_spark.spark.source.one_queue import OneQueue
    from cassieq_spark.spark.source.renewal import Renewal
    from cassieq_spark.spark.source.subscription import Subscription
    from cassieq_spark.store.store import Store

AT_ONCE: Final = 16
"""The most queues that are claimed from side by side. Each may add thousands of runs of ids to the
offset: after each wave it is seen whether that is enough for one batch."""

LOOK_S: Final = 2.0
"""How long a claim waits for each statement, as long as other queues may have messages."""

_logger = get_logger("spark")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one queue may add to the batch in one turn."""

    queue: OneQueue
    limits: Limits

    def is_filled_by(self, claimed: list[Claimed]) -> bool:
        """Whether nothing more fits, so that the queue may have more."""
        budget = Budget(messages=self.limits.at_most, size_bytes=self.limits.at_most_bytes)
        budget.take_claimed(claimed)
        return budget.is_full

    async def look_ahead(self) -> None:
        """Look for what the queue's next turn will claim."""
        await self.queue.look_ahead(self.limits)


class Claiming:
    """Claims for one run of a query."""

    def __init__(self, store: Store, subscription: Subscription, renewal: Renewal) -> None:
        self._session = store.session
        self._subscription = subscription
        self._renewal = renewal
        self._first = ""
        self._asked: list[_Part] = []

    def awake(self) -> list[OneQueue]:
        """The queues that may have messages, the one whose turn it is first.

        Raises:
            StoreError: The only queue did not answer.
            QueueDeleted, DataLoss: A queue is gone.
        """
        queues = self._subscription.queues
        with self._session.within(each_s=inf if self._subscription.is_one else LOOK_S):
            said = portal.run(self._session.each(lambda queue: queue.may_find(), queues))
        awake = []
        for queue, one in zip(queues, said, strict=True):
            if isinstance(one, QueueDeleted):
                self._subscription.drop(queue, one)
            elif isinstance(one, CassieqError) and self._subscription.is_one:
                raise one
            elif one is not False:
                # One without an answer is among them: then the error, if it stays, has a name.
                awake.append(queue)
        later = [queue for queue in awake if queue.name >= self._first]
        return [*later, *awake[: len(awake) - len(later)]]

    def count(self, awake: list[OneQueue], enough: int) -> int | None:
        """About how many messages a claim from these would find, counted up to ``enough``.

        What does not answer holds up no other (I10).

        Returns:
            None: none was found, but a part did not answer. A claim finds out, or names it.
        """
        counted = portal.run(self._session.each(lambda queue: queue.count(enough), awake))
        found = sum(one for one in counted if isinstance(one, int))
        return found if found or all(isinstance(one, int) for one in counted) else None

    def tidy(self, awake: list[OneQueue]) -> None:
        """Do what a claim that finds nothing does besides; see `Reader.tidy`.

        Raises:
            QueueDeleted, DataLoss: A queue is gone.
        """
        with self._session.within(each_s=LOOK_S):
            said = portal.run(self._session.each(lambda queue: queue.tidy(), awake))
        for queue, one in zip(awake, said, strict=True):
            if isinstance(one, QueueDeleted):
                self._subscription.drop(queue, one)
            elif isinstance(one, CassieqError) and not isinstance(one, StoreError):
                raise one  # what did not answer is asked again by the next trigger's count

    def claim(self, awake: list[OneQueue], limits: Limits) -> list[Claimed]:
        """Claim a batch from these queues.

        Raises:
            StoreError: Nothing was claimed, and a queue did not answer.
            QueueDeleted, DataLoss: A queue is gone; what was claimed is given back.
        """
        whole = Budget(messages=limits.at_most, size_bytes=limits.at_most_bytes)
        claimed: list[Claimed] = []
        failed: dict[OneQueue, CassieqError] = {}
        hungry, self._asked = awake, []
        try:
            while hungry and not whole.is_full:
                hungry = self._turn(hungry, whole, limits, claimed, failed)
            if failed and not claimed and not self._subscription.is_one:
                # No other queue has messages: these may have all the time there is.
                waiting, failed = list(failed), {}
                self._turn(waiting, whole, limits, claimed, failed, each_s=inf)
        except CassieqError:
            self._renewal.drop(ids_by_bucket(claimed))
            portal.run(give_back(claimed))  # no offset will name it [T22]
            raise
        if failed and not claimed:
            raise next(iter(failed.values()))
        for queue, error in failed.items():
            event(_logger, "queue_passed_over", queue=queue.name, error=str(error))
        return claimed

    def next_look(
        self, claimed: list[Claimed], limits: Limits
    ) -> Callable[[], Coroutine[Any, Any, object]] | None:
        """What to do while Spark works on this batch; None if it holds all there was."""
        if messages(claimed) < limits.at_most and limits.at_most_bytes is None:
            return None

        async def look() -> None:
            await self._session.each(_Part.look_ahead, self._asked)

        return look

    def _turn(
        self,
        hungry: list[OneQueue],
        whole: Budget,
        limits: Limits,
        claimed: list[Claimed],
        failed: dict[OneQueue, CassieqError],
        *,
        each_s: float = LOOK_S,
    ) -> list[OneQueue]:
        """Ask each queue once, as long as there is room; return those that may have more."""
        may_have_more: list[OneQueue] = []
        waiting = hungry
        while waiting and not whole.is_full:
            wave = _shares(waiting, whole, limits)
            waiting = waiting[len(wave) :]
            with self._session.within(each_s=inf if self._subscription.is_one else each_s):
                got = portal.run(
                    self._session.each(lambda part: part.queue.claim(part.limits), wave)
                )
            for part, one in zip(wave, got, strict=True):
                if isinstance(one, list):
                    claimed += one
                    whole.take_claimed(one)
                    if part.is_filled_by(one):
                        may_have_more.append(part.queue)
            for part, one in zip(wave, got, strict=True):
                if isinstance(one, QueueDeleted):
                    self._subscription.drop(part.queue, one)
                elif isinstance(one, CassieqError):
                    failed[part.queue] = one
            self._asked = self._asked or wave
        # The next batch begins with who got nothing in this one, or with the second in turn.
        self._first = (waiting or hungry[1:] or hungry)[0].name
        return may_have_more


def _shares(waiting: list[OneQueue], whole: Budget, limits: Limits) -> list[_Part]:
    """What each of the next queues may add: an even part of the room there is."""
    left, size = whole.messages, whole.size_bytes
    each_bytes = None if size is None else max(1, int(size / len(waiting)))
    parts = []
    for at, queue in enumerate(waiting[:AT_ONCE]):
        share = -(-left // (len(waiting) - at))
        if not share:
            break
        left -= share
        parts.append(_Part(queue, replace(limits, at_most=share, at_most_bytes=each_bytes)))
    return parts
