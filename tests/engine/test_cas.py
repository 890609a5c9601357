"""Every CAS ends in a settled outcome, whatever becomes of its answer (G2, G3)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CasAmbiguous, UsageError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.outcome import (
    TAGGED_CLIENTS,
    Applied,
    Evicted,
    Refused,
    Stored,
    Tags,
    Version,
)
from cassieq_spark.store import portal
from cassieq_spark.store.cas import CasSender
from cassieq_spark.store.tables.lanes import Monoton, Monotons
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from tests.fixtures.queues import Door


class Row:
    """A monoton row of its own: the smallest of the LWT-only ones."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.lane = LaneId(new_uuid())
        outcome = portal.run(
            door.store.lane(self.lane).monotons.insert(Monoton(next_id=0, reserved_us=1))
        )
        assert isinstance(outcome, Applied)
        self.born = outcome.now

    @property
    def now(self) -> Stored[Monoton]:
        row = portal.run(self.door.store.lane(self.lane).monotons.read())
        assert row is not None
        return row

    def set(
        self, next_id: int, *, old: Stored[Monoton] | None = None, by: Monotons | None = None
    ) -> Applied[Monoton] | Refused[Monoton] | Evicted[Monoton]:
        before = old or self.now
        monotons = by or self.door.store.lane(self.lane).monotons
        return portal.run(monotons.update(before, replace(before.value, next_id=next_id)))


@pytest.fixture
def row(door: Door) -> Row:
    return Row(door)


def another_client(row: Row) -> Monotons:
    """The same session under another client id: a cheap crowd."""

    class Other:
        client_id = new_uuid()

        def __getattr__(self, name: str) -> object:
            return getattr(row.door.session, name)

    other: Any = Other()
    store: Any = SimpleNamespace(session=other, sender=CasSender(other))
    return Monotons(store, row.lane)


def test_a_cas_on_a_row_that_others_changed_is_refused_and_shows_it(row: Row) -> None:
    old = row.now
    row.set(10)
    outcome = row.set(20, old=old)
    assert Refused(now=row.now) == outcome
    assert 10 == row.now.value.next_id


@pytest.mark.invariant("I5")
def test_p3_a_row_that_is_born_again_is_not_the_one_a_stale_cas_read(door: Door, row: Row) -> None:
    """Its counter begins at 1 again, as in its first life; its writer does not."""
    portal.run(door.store.lane(row.lane).monotons.delete(row.born))
    again = portal.run(door.store.lane(row.lane).monotons.insert(Monoton(next_id=0, reserved_us=1)))
    assert isinstance(again, Applied)
    assert row.born.version.row_version == again.now.version.row_version
    assert isinstance(row.set(99, old=row.born), Refused)
    assert 0 == row.now.value.next_id


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER])
@pytest.mark.parametrize("times", [1, 3])
def test_p7_a_lost_answer_is_settled_by_sending_the_same_statement_again(
    door: Door, row: Row, fault: Fault, times: int
) -> None:
    door.faults.plan("reserve", fault, times=times)
    outcome = row.set(10)
    assert isinstance(outcome, Applied)
    assert (10, 2) == (row.now.value.next_id, row.now.version.row_version)
    assert outcome.now.version.writer == row.now.version.writer


@pytest.mark.invariant("I3")
def test_p7_a_cas_that_took_effect_and_was_overtaken_has_happened(door: Door, row: Row) -> None:
    """Its answer is lost, another client writes on top, then it is sent again: refused, but ours
    is among the tags."""
    other = another_client(row)
    door.faults.plan("reserve", Fault.TIMEOUT_AFTER)
    door.faults.before("reserve", lambda: _is_applied(row.set(20, by=other)), after=1)
    outcome = row.set(10)
    assert isinstance(outcome, Applied)
    assert (20, 3) == (outcome.now.value.next_id, outcome.now.version.row_version)


@pytest.mark.invariant("I3")
def test_p7_a_cas_that_lands_between_two_sends_has_happened_once(door: Door, row: Row) -> None:
    door.faults.plan("reserve", Fault.LATE)
    door.faults.before("reserve", lambda: _is_one(door.faults.land()), after=1)
    assert isinstance(row.set(10), Applied)
    assert (10, 2) == (row.now.value.next_id, row.now.version.row_version)


@pytest.mark.invariant("I3")
def test_p7_a_cas_that_was_refused_cannot_happen_any_more(door: Door, row: Row) -> None:
    """Late on its way, overtaken, sent again: refused; when it lands its condition is dead."""
    other = another_client(row)
    door.faults.plan("reserve", Fault.LATE)
    door.faults.before("reserve", lambda: _is_applied(row.set(20, by=other)), after=1)
    assert isinstance(row.set(10), Refused)
    assert 1 == door.faults.land()
    assert 20 == row.now.value.next_id


def test_an_insert_whose_answer_was_lost_is_settled_the_same_way(door: Door) -> None:
    lane = LaneId(new_uuid())
    door.faults.plan("insert_monoton", Fault.TIMEOUT_AFTER)
    assert isinstance(
        portal.run(door.store.lane(lane).monotons.insert(Monoton(next_id=0, reserved_us=1))),
        Applied,
    )


def test_r8_a_client_has_one_tag_however_often_it_writes(row: Row) -> None:
    """400 others' CASes in two seconds must not push it out: tags are per client."""
    first = row.set(1).now
    assert first is not None
    for next_id in range(2, 2 + 2 * TAGGED_CLIENTS):
        row.set(next_id, by=None)
    tags = row.now.version.tags
    assert (1, 0) == (len(tags.entries), tags.evicted)


@pytest.mark.invariant("I3")
def test_r8_more_clients_than_tags_make_a_lost_answer_a_look_at_effects(
    door: Door, row: Row
) -> None:
    """Applied, its answer lost, then 64 other clients: "not among the tags" proves nothing."""

    def crowd() -> None:
        for number in range(TAGGED_CLIENTS):
            _is_applied(row.set(100 + number, by=another_client(row)))

    door.faults.plan("reserve", Fault.TIMEOUT_AFTER)
    door.faults.before("reserve", crowd, after=1)
    outcome = row.set(10)
    assert Evicted(now=row.now) == outcome
    assert 2 == row.now.version.tags.evicted
    assert TAGGED_CLIENTS == len(row.now.version.tags.entries)


def test_r8_what_was_evicted_before_the_row_was_read_says_nothing_about_a_later_cas(
    row: Row,
) -> None:
    for number in range(TAGGED_CLIENTS + 5):
        row.set(number + 1, by=another_client(row))
    old = row.now
    assert old.version.tags.evicted > 0
    row.set(500, by=another_client(row))
    # One more eviction, but of a CAS that came before this one could have happened.
    assert row.now.version.tags.evicted <= old.version.row_version
    assert isinstance(row.set(600, old=old), Refused)


def test_tags_are_stored_as_they_are(row: Row) -> None:
    tags = row.now.version.tags
    assert tags == Tags.decode(tags.encode())
    assert Tags() == Tags.decode(None)
    assert Version(writer=row.now.version.writer, tags=tags, row_version=1) == row.now.version


@pytest.mark.usefixtures("still_time")
def test_a_statement_that_the_server_refuses_is_not_sent_again(door: Door, row: Row) -> None:
    door.faults.plan("reserve", Fault.REFUSE, times=2)
    before = door.counts["reserve"]
    with pytest.raises(UsageError, match="reserve"):
        row.set(10)
    assert before == door.counts["reserve"]
    with pytest.raises(UsageError):
        row.set(10)
    assert isinstance(row.set(10), Applied)


def test_a_cas_that_stays_unanswered_is_ambiguous_not_failed(door: Door, row: Row) -> None:
    """Its clock is turned: nobody waits for the 20 s."""
    door.faults.plan("reserve", Fault.TIMEOUT_BEFORE, times=2)
    _pauses_last(door, 21)
    with pytest.raises(CasAmbiguous, match="unanswered"):
        row.set(10)
    assert 0 == row.now.value.next_id


def test_p21_a_client_in_another_data_centre_than_the_queues_is_refused(door: Door) -> None:
    """Its LOCAL_SERIAL would be a second Paxos history of the same rows."""
    assert door.queue.name == door.client.queue(door.queue.name).name
    home, door.session.datacenter = door.session.datacenter, "dc9"
    with pytest.raises(UsageError, match=f"lives in data centre '{home}'"):
        door.client.queue(door.queue.name)


def _pauses_last(door: Door, seconds: float) -> None:
    """Each pause between two sends lasts so long, by the clock."""

    class Leaping:
        def now_us(self) -> int:
            return door.clock.now_us()

        def monotonic(self) -> float:
            return door.clock.monotonic()

        def call_later(self, after_s: float, call: Callable[[], object]) -> TimerHandle:
            return door.clock.call_later(after_s, call)

        async def sleep(self, _seconds: float) -> None:
            door.clock.advance(seconds)

    door.session.clock = Leaping()  # type: ignore[assignment]  # a clock, but no ClusterClock


def _is_applied(outcome: object) -> None:
    assert isinstance(outcome, Applied), outcome


def _is_one(landed: int) -> None:
    assert 1 == landed
