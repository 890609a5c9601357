"""The answer of a CAS is lost, at every LWT of every verb: it is settled, nothing is doubled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import QueueDeleted, QueueNotFound, ReceiptExpired
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue import seal
from cassieq_spark.store import portal
from cassieq_spark.store.statements import Kind, every_statement
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.queue.message import Delivery
    from tests.fixtures.queues import Door, OpenDoor

LWTS = {statement.name for statement in every_statement() if statement.kind is Kind.CAS}
BUCKET = BucketNo(0)


class Loss(StrEnum):
    """What becomes of one sending of an LWT; the client is not answered."""

    BEFORE = "lost before it ran"
    AFTER = "ran, unheard"
    TWICE = "ran, unheard, and so was what was sent again"
    LATE = "runs when all is over"
    OVERTAKEN = "ran, unheard, and others changed the row before it was sent again"


@dataclass(slots=True)
class Both:
    """Two clients of one queue: whose answers are lost, and the other one."""

    mine: Door
    other: Door

    @property
    def queue(self) -> cassieq.Queue:
        return self.mine.queue

    def advance(self, seconds: float) -> None:
        self.mine.clock.advance(seconds)
        self.other.clock.advance(seconds)

    def touch_rows(self) -> None:
        """The other client's CAS on each row there is, which changes no value: only whose it is."""
        store, lane = self.other.store, self.other.lane
        for bucket in (BucketNo(0), BucketNo(1)):
            row = portal.run(store.lane(lane.lane_id).buckets.read(bucket))
            if row is not None:
                portal.run(store.lane(lane.lane_id).buckets.update(bucket, row, row.value))
        monoton = portal.run(store.lane(lane.lane_id).monotons.read())
        if monoton is not None:
            portal.run(store.lane(lane.lane_id).monotons.update(monoton, monoton.value))
        for name in (lane.queue, f"{lane.queue}.new"):
            found = portal.run(store.queues.read(name))
            if found is not None:
                portal.run(store.queues.update(found, found.value))

    def drained(self) -> list[tuple[bytes, int]]:
        """What the other client gets and acks until nothing is left: (body, delivery count)."""
        found = []
        while messages := self.other.queue.get(10, visibility_timeout=3_600):
            self.other.queue.ack(messages)
            found += described(messages)
        stats = self.other.queue.stats()
        assert (0, 0, 0) == (stats.visible, stats.in_flight, stats.delayed)
        return sorted(found)


def described(messages: list[Delivery]) -> list[tuple[bytes, int]]:
    return sorted((one.body, one.delivery_count) for one in messages)


@pytest.fixture
def both(open_door: OpenDoor) -> Both:
    return Both(mine=open_door(visibility_timeout=30), other=open_door(visibility_timeout=30))


# --- the verbs: what is there before, what the verb does, what must be there afterwards -----------


def nothing(both: Both) -> None:
    """An empty queue."""


def three_put(both: Both) -> None:
    both.other.queue.put_many([b"0", b"1", b"2"])


def three_put_and_one_got(both: Both) -> list[Delivery]:
    three_put(both)
    return both.other.queue.get(1)


def three_got(both: Both) -> list[Delivery]:
    three_put(both)
    return sorted(both.queue.get(3), key=lambda one: one.body)


def one_put_and_a_seal_ahead(both: Both) -> None:
    """Before the next put's write, the other client seals the bucket it goes into."""
    both.queue.put(b"0")
    both.mine.faults.before("write_message", lambda: _seal(both.other))


def one_put_and_half_a_seal_ahead(both: Both) -> None:
    """Before the next put's write, the other client begins a seal, and dies."""
    both.queue.put(b"0")
    both.mine.faults.before("write_message", lambda: _begin_seal(both.other))


def _seal(door: Door) -> None:
    assert portal.run(seal.close(door.lane, BUCKET)) is not None


def _begin_seal(door: Door) -> None:
    row = rules.sealing(now_us=door.lane.clock.now_us())
    portal.run(door.lane.buckets.insert(BUCKET, row))


def one_got_and_more_put(both: Both) -> None:
    """A sealed bucket with a lease, and an open one."""
    assert 1 == len(three_put_and_one_got(both))
    both.queue.put_many([b"3", b"4"])


def create(both: Both, _: object) -> cassieq.Queue:
    return both.mine.client.create_queue(f"{both.queue.name}.new", bucket_size=10)


def is_created(both: Both, _: object, created: cassieq.Queue) -> None:
    found = both.other.client.queue(created.name)
    assert created._lane.lane_id == found._lane.lane_id
    created.put(b"0")
    assert [(b"0", 1)] == described(found.get())


def alter(both: Both, _: object) -> cassieq.Queue:
    return both.mine.client.alter_queue(both.queue.name, visibility_timeout=7)


def is_altered(both: Both, _: object, altered: cassieq.Queue) -> None:
    assert 7 == altered.settings.visibility_timeout_s
    assert 7 == both.other.client.queue(altered.name).settings.visibility_timeout_s


def put_many(both: Both, _: object) -> list[str]:
    return both.queue.put_many([b"0", b"1", b"2"])


def three_are_in(both: Both, _: object, ids: list[str]) -> None:
    messages = both.other.queue.get(10)
    assert sorted(ids) == sorted(one.message_id for one in messages)
    assert [(b"0", 1), (b"1", 1), (b"2", 1)] == described(messages)
    both.other.queue.ack(messages)
    assert [] == both.drained()


def put_another(both: Both, _: object) -> str:
    return both.queue.put(b"1")


def two_are_in(both: Both, _: object, message_id: str) -> None:
    messages = both.other.queue.get(10) + both.other.queue.get(10)
    assert [(b"0", 1), (b"1", 1)] == described(messages)
    assert [message_id] == [one.message_id for one in messages if one.body == b"1"]
    both.other.queue.ack(messages)
    assert [] == both.drained()


def get(both: Both, _: object) -> list[Delivery]:
    return both.queue.get(10)


def three_are_leased(both: Both, _: object, got: list[Delivery]) -> None:
    assert [(b"0", 1), (b"1", 1), (b"2", 1)] == described(got)
    _lease_is_the_only_one(both, got)
    both.advance(60)
    assert [(b"0", 2), (b"1", 2), (b"2", 2)] == both.drained()


def the_other_two_are_leased(both: Both, before: list[Delivery], got: list[Delivery]) -> None:
    bodies = {b"0", b"1", b"2"} - {one.body for one in before}
    assert sorted((body, 1) for body in bodies) == described(got)
    _lease_is_the_only_one(both, got, already=len(before))
    both.queue.ack(got)
    both.advance(60)
    assert [(one.body, 2) for one in before] == both.drained()


def _lease_is_the_only_one(both: Both, got: list[Delivery], *, already: int = 0) -> None:
    stats = both.other.queue.stats()
    assert (0, len(got) + already) == (stats.visible, stats.in_flight)
    assert [] == both.other.queue.get(10)


def ack_two(both: Both, got: list[Delivery]) -> None:
    both.queue.ack(got[:2])


def two_are_gone(both: Both, got: list[Delivery], _: object) -> None:
    both.queue.ack(got[:2])
    both.advance(60)
    assert [(b"2", 2)] == both.drained()


def extend_two(both: Both, got: list[Delivery]) -> None:
    both.queue.extend(got[:2], 3_600)


def two_are_held_longer(both: Both, got: list[Delivery], _: object) -> None:
    both.advance(60)
    assert [(b"2", 2)] == described(both.other.queue.get(10, visibility_timeout=3_600))
    both.queue.ack(got[:2])
    both.advance(7_200)
    assert [(b"2", 3)] == both.drained()


def release_two(both: Both, got: list[Delivery]) -> None:
    both.queue.release(got[:2])


def two_are_visible(both: Both, got: list[Delivery], _: object) -> None:
    with pytest.raises(ReceiptExpired):
        both.queue.ack(got[0])
    assert [(b"0", 2), (b"1", 2)] == described(both.other.queue.get(10))
    both.queue.ack(got[2])
    both.advance(60)
    assert [(b"0", 3), (b"1", 3)] == both.drained()


def update_one(both: Both, got: list[Delivery]) -> Delivery:
    return both.queue.update(got[0], body=b"new")


def one_is_updated(both: Both, got: list[Delivery], updated: Delivery) -> None:
    with pytest.raises(ReceiptExpired):
        both.queue.ack(got[0])
    both.queue.ack(got[1])
    assert [] == both.other.queue.get(10)
    both.queue.extend(updated, 40)
    both.advance(60)
    assert [(b"2", 2), (b"new", 2)] == both.drained()


def purge(both: Both, _: object) -> int:
    return both.queue.purge()


def nothing_is_left(both: Both, _: object, dropped: int) -> None:
    assert 5 == dropped
    both.advance(60)
    assert [] == both.drained()


def delete(both: Both, _: object) -> None:
    both.queue.delete()


def is_deleted(both: Both, _: object, __: object) -> None:
    name = both.queue.name
    with pytest.raises(QueueNotFound):
        both.other.client.queue(name)
    with pytest.raises(QueueDeleted):
        both.other.queue.put(b"5")
    again = both.mine.client.create_queue(name)
    assert [] == again.get()
    assert 0 == both.mine.faults.land()
    again.put(b"6")
    assert [(b"6", 1)] == described(both.other.client.queue(name).get())


@dataclass(frozen=True, slots=True)
class Verb:
    """One call of the API and its LWTs, as often as it sends each."""

    lwts: dict[str, int]
    before: Callable[[Both], Any]
    act: Callable[[Both, Any], Any]
    check: Callable[[Both, Any, Any], None]


VERBS = {
    "create": Verb({"insert_monoton": 1, "insert_queue": 1}, nothing, create, is_created),
    "alter": Verb({"update_queue": 1}, nothing, alter, is_altered),
    "put": Verb({"reserve": 1}, nothing, put_many, three_are_in),
    "put_beside_a_seal": Verb({"reserve": 1}, one_put_and_a_seal_ahead, put_another, two_are_in),
    "put_and_finish_a_seal": Verb(
        {"fill_bucket": 1}, one_put_and_half_a_seal_ahead, put_another, two_are_in
    ),
    "get_and_seal": Verb({"insert_bucket": 1, "fill_bucket": 1}, three_put, get, three_are_leased),
    "get": Verb({"update_bucket": 1}, three_put_and_one_got, get, the_other_two_are_leased),
    "ack": Verb({"update_bucket": 1}, three_got, ack_two, two_are_gone),
    "extend": Verb({"update_bucket": 1}, three_got, extend_two, two_are_held_longer),
    "release": Verb({"update_bucket": 1}, three_got, release_two, two_are_visible),
    "update": Verb({"update_bucket": 1}, three_got, update_one, one_is_updated),
    "purge": Verb(
        {"insert_bucket": 1, "fill_bucket": 1, "update_bucket": 2},
        one_got_and_more_put,
        purge,
        nothing_is_left,
    ),
    "delete": Verb(
        {"update_queue": 1, "delete_bucket": 2, "delete_monoton": 1, "delete_queue": 1},
        one_got_and_more_put,
        delete,
        is_deleted,
    ),
}

POINTS = [
    pytest.param(verb, name, nth, id=f"{verb}-{name}-{nth}")
    for verb, one in VERBS.items()
    for name, times in one.lwts.items()
    for nth in range(times)
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_sends_these_lwts_and_no_others(both: Both, verb: str) -> None:
    """Else there are points of which the tests below know nothing."""
    one = VERBS[verb]
    state = one.before(both)
    counts = both.mine.session.counts
    before = Counter(counts)
    result = one.act(both, state)
    sent = counts - before
    assert one.lwts == {name: times for name, times in sent.items() if name in LWTS}
    one.check(both, state, result)


@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("loss", Loss, ids=lambda loss: loss.name.lower())
@pytest.mark.parametrize(("verb", "name", "nth"), POINTS)
def test_an_lwt_whose_answer_is_lost_is_settled_and_takes_effect_once(
    both: Both, verb: str, name: str, nth: int, loss: Loss
) -> None:
    one = VERBS[verb]
    state = one.before(both)
    faults = both.mine.faults
    with faults.on(both.mine.session):
        match loss:
            case Loss.BEFORE:
                faults.plan(name, Fault.TIMEOUT_BEFORE, after=nth)
            case Loss.AFTER:
                faults.plan(name, Fault.TIMEOUT_AFTER, after=nth)
            case Loss.TWICE:
                faults.plan(name, Fault.TIMEOUT_AFTER, after=nth, times=2)
            case Loss.LATE:
                faults.plan(name, Fault.LATE, after=nth)
            case Loss.OVERTAKEN:
                faults.plan(name, Fault.TIMEOUT_AFTER, after=nth)
                faults.before(name, both.touch_rows, after=nth + 1)
        result = one.act(both, state)
        assert (1 if loss is Loss.LATE else 0) == faults.land()
        assert "to do" not in str(faults)
    one.check(both, state, result)


@pytest.mark.invariant("I3")
def test_an_update_that_was_answered_after_its_lease_was_claimed_again_gives_a_stale_receipt(
    both: Both,
) -> None:
    """Not none at all, as if it had been given back: such a message spoils the ack of a list."""
    got = three_got(both)
    both.mine.faults.plan("update_bucket", Fault.TIMEOUT_AFTER)

    def others_claim() -> None:
        both.advance(60)
        assert 3 == len(both.other.queue.get(10, visibility_timeout=3_600))

    both.mine.faults.before("update_bucket", others_claim, after=1)
    with both.mine.faults.on(both.mine.session):
        updated = both.queue.update(got[0], body=b"new")
    assert b"new" == updated.body
    with pytest.raises(ReceiptExpired) as refused:
        both.queue.ack([updated])
    assert (updated.receipt,) == refused.value.refused
