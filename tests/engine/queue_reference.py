"""What a queue has to do, as a dict of messages: the reference of `test_client_machine`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cassieq_spark.queue.settle.settle import AckResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cassieq_spark.queue.message import Delivery


class Place(StrEnum):
    """Where a message is."""

    FREE = "free"
    HELD = "held"
    REJECTED = "rejected"
    DONE = "done"
    MOVED = "moved"


@dataclass(slots=True)
class Expected:
    """One message.

    Attributes:
        due_s: Before it nobody gets it. ``until_s``: then its lease runs out.
    """

    body: bytes
    tag: str | None
    headers: Mapping[str, str]
    place: Place = Place.FREE
    count: int = 0
    due_s: float = 0
    until_s: float = 0
    receipt: str | None = None


@dataclass(slots=True)
class Reference:
    """One queue, at a time that the test sets, seconds."""

    max_deliveries: int | None
    now_s: float = 0
    messages: dict[str, Expected] = field(default_factory=dict)

    def put(self, message_id: str, message: Expected) -> None:
        assert message_id not in self.messages
        self.messages[message_id] = message

    def got(self, found: Iterable[Delivery], *, at_most: int, visibility_s: float) -> None:
        """What a get returned: all of it was visible, and something was returned if it could."""
        ids = [one.message_id for one in found]
        assert len(ids) == len(set(ids)) <= at_most
        assert set() == set(ids) - self.visible()
        assert ids or not self.visible()
        for one in found:
            expected = self.messages[one.message_id]
            assert (expected.body, expected.tag, expected.headers, expected.count + 1) == (
                *(one.body, one.tag, one.headers, one.delivery_count),
            )
            expected.place = Place.HELD
            expected.count = one.delivery_count
            expected.until_s = self.now_s + visibility_s
            expected.receipt = one.receipt

    def acked(self, held: Delivery, verdict: AckResult) -> None:
        expected = self.messages[held.message_id]
        if self.holds(held):
            allowed = (
                {AckResult.ACKED, AckResult.STALE} if self.is_dying(expected) else {AckResult.ACKED}
            )
        elif expected.place in (Place.DONE, Place.MOVED):
            allowed = {AckResult.ALREADY_ACKED}
        else:
            allowed = {AckResult.STALE}
        assert verdict in allowed
        if verdict is AckResult.ACKED:
            expected.place = Place.DONE

    def given_back(self, held: Delivery, *, was_done: bool, delay_s: float = 0) -> None:
        if self._check(held, was_done=was_done):
            expected = self.messages[held.message_id]
            expected.place = Place.FREE
            expected.receipt = None
            expected.due_s = self.now_s + delay_s

    def extended(self, held: Delivery, *, was_done: bool, until_s: float) -> None:
        if self._check(held, was_done=was_done):
            self.messages[held.message_id].until_s = until_s

    def updated(self, held: Delivery, new: Delivery | None, *, body: bytes | None) -> None:
        """``new``: what update returned; None: it was refused."""
        if self._check(held, was_done=new is not None):
            assert new is not None
            expected = self.messages[held.message_id]
            expected.body = expected.body if body is None else body
            assert expected.body == new.body
            expected.receipt = new.receipt

    def rejected(self, held: Delivery, *, was_done: bool) -> None:
        if self._check(held, was_done=was_done):
            self.messages[held.message_id].place = Place.REJECTED

    def repaired(self) -> None:
        for expected in self.messages.values():
            if self.is_dying(expected) or expected.place is Place.REJECTED:
                expected.place = Place.MOVED

    def purged(self, dropped: int) -> None:
        is_left = (Place.FREE, Place.HELD, Place.REJECTED)
        left = [one for one in self.messages.values() if one.place in is_left]
        assert len(left) == dropped
        for expected in left:
            expected.place = Place.DONE

    def visible(self) -> set[str]:
        """Ids of what a get may return."""
        return {
            message_id
            for message_id, one in self.messages.items()
            if self._is_there(one) and not self.is_dying(one)
        }

    def is_dying(self, one: Expected) -> bool:
        """It came back, and is not delivered again: dead as soon as somebody looks."""
        limit = self.max_deliveries
        return limit is not None and one.count >= limit and self._is_there(one)

    def holds(self, held: Delivery) -> bool:
        expected = self.messages[held.message_id]
        return expected.place is Place.HELD and expected.receipt == held.receipt

    def numbers(self) -> tuple[int, int, int]:
        """(visible or dead, invisible, delayed), as `QueueStats` counts."""
        there = held = delayed = 0
        for one in self.messages.values():
            if self._is_there(one) or one.place is Place.REJECTED:
                there += 1
            elif one.place is Place.HELD:
                held += 1
            elif one.place is Place.FREE:
                delayed += 1
        return there, held, delayed

    def moved(self) -> list[tuple[str, bytes, int]]:
        """(id, body, deliveries) of what is in the dead-letter queue."""
        return sorted(
            (message_id, one.body, one.count)
            for message_id, one in self.messages.items()
            if one.place is Place.MOVED
        )

    def _is_there(self, one: Expected) -> bool:
        if one.place is Place.HELD:
            return one.until_s < self.now_s
        return one.place is Place.FREE and one.due_s <= self.now_s

    def _check(self, held: Delivery, *, was_done: bool) -> bool:
        holds = self.holds(held)
        assert was_done == holds or (holds and self.is_dying(self.messages[held.message_id]))
        return was_done
