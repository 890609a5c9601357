"""What a home's quorum shows of its queues may be old: that is found out, and nothing rests on it
(ADR 17). One node cannot be behind itself, so its rows of before are given in place of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from cassandra import Unavailable

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import UsageError
from cassieq_spark.model.moments import time_of
from cassieq_spark.queue.find import LaneSpec, find_row, refreshed
from cassieq_spark.store import portal, statements
from cassieq_spark.store.tables.lanes import Schedules
from cassieq_spark.store.tables.queues import Queues
from tests.fixtures.queues import Crash, crash, drain
from tests.fixtures.transports import intercept, run_cql

if TYPE_CHECKING:
    from cassieq_spark.model.lanes import DueLane
    from cassieq_spark.model.outcome import Stored
    from cassieq_spark.store.tables.queues import QueueRow
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_homes"


def is_behind(monkeypatch: pytest.MonkeyPatch, name: str, row: Stored[QueueRow] | None) -> None:
    """From now on the home shows this row under this name."""
    find, find_all = Queues.find, Queues.find_all

    async def found(self: Queues, asked: str) -> Stored[QueueRow] | None:
        return row if asked == name else await find(self, asked)  # type: ignore[arg-type]

    async def all_found(self: Queues) -> list[QueueRow]:
        others = [one for one in await find_all(self) if one.name != name]
        return others if row is None else [*others, row.value]

    monkeypatch.setattr(Queues, "find", found)
    monkeypatch.setattr(Queues, "find_all", all_found)


def row_of(door: Door) -> Stored[QueueRow]:
    row = portal.run(door.store.queues.read(door.lane.queue))
    assert row is not None
    return row


def test_p21_a_queue_that_is_not_shown_yet_is_asked_of_all(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_behind(monkeypatch, door.queue.name, None)
    door.client.queue(door.queue.name).put(b"m")
    assert [b"m"] == door.drain()


def test_p21_a_home_without_a_copy_of_the_keyspace_asks_the_others(door: Door) -> None:
    """Its own quorum is never there: one attempt is enough to know."""
    calls = []

    class Away:
        def around(self, statement: object, params: object, proceed: object) -> object:  # noqa: ARG002
            if statement in (statements.FIND_QUEUE, statements.FIND_QUEUES, statements.FIND_META):
                calls.append(statement)
                raise Unavailable("none here", 6, 1, 0)
            return proceed()  # type: ignore[operator]

    intercept(door.session, Away())
    assert door.queue.name == door.client.queue(door.queue.name).name
    assert door.queue.name in {one.name for one in door.client.queues()}
    assert 2 * [statements.FIND_META] == [one for one in calls if one is statements.FIND_META]
    assert 1 == calls.count(statements.FIND_QUEUE)


def test_p21_an_ended_queue_that_is_still_shown_is_gone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = row_of(door)
    door.queue.delete()
    is_behind(monkeypatch, door.queue.name, before)
    with pytest.raises(cassieq.QueueNotFound):
        door.client.queue(door.queue.name)
    with pytest.raises(cassieq.QueueDeleted):
        portal.run(refreshed(door.lane))
    assert door.queue.name not in {one.queue for one in door.client.repair().queues}
    assert door.queue.name not in {one.queue for one in door.client.verify().findings}
    door.client.repair(dry_run=True)


@pytest.mark.invariant("I7")
def test_p24_the_row_of_a_move_stays_while_its_queue_is_shown_as_the_one_before(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the queue that was created again, repair sees what it is now, and moves its dead once."""

    graves = open_door(".dead")
    settings = {"dead_letter_queue": graves.queue.name, "max_deliveries": 1}
    old = open_door(**settings)
    before = row_of(old)
    old.queue.delete()
    door = open_door(**settings)
    door.queue.put(b"m")
    assert 1 == len(door.queue.get(visibility_timeout=1))
    door.clock.advance(60)
    door.faults.before("update_bucket", crash, after=2)  # marked, visible there, taken out
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    assert [b"m"] == [one.body for one in graves.queue.peek()]

    is_behind(monkeypatch, door.queue.name, before)
    other = open_door(".other")
    other.clock.advance(3_600)
    report = other.client.repair()
    assert door.queue.name in {one.queue for one in report.queues}
    other.client.repair()
    assert [b"m"] == graves.drain()
    assert 0 == door.queue.stats().dead


def test_p21_half_a_row_is_none(door: Door) -> None:
    """A data centre that has an update, and not the insert before it."""
    name = f"{door.queue.name}.half"
    half = "UPDATE {ks}.queue SET status = ?, writer = ? WHERE name = ? IF writer = ?"
    run_cql(door.session, half, "active", new_uuid(), name, None)
    assert portal.run(door.store.queues.find(door.lane.queue)) is not None
    assert portal.run(find_row(door.store, name)) is None  # type: ignore[arg-type]
    assert name not in {one.name for one in door.client.queues()}
    run_cql(door.session, "DELETE FROM {ks}.queue WHERE name = ? IF EXISTS", name)


def test_p21_a_task_that_came_to_another_data_centre_is_refused(door: Door) -> None:
    spec = LaneSpec.of(door.lane)
    assert door.lane.lane_id == spec.on(door.store).lane_id
    elsewhere = replace(spec.row, home_datacenter="elsewhere")
    with pytest.raises(UsageError, match=r"lives in data centre 'elsewhere'"):
        replace(spec, row=elsewhere).on(door.store)


@pytest.mark.invariant("I1")
def test_p21_a_full_pass_elsewhere_ends_no_due_lane_of_a_queue(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its schedule comes there by itself, and late: what it does not name yet may be in use."""
    door = open_door(linger=0)
    due_at = time_of(door.clock.now_us()) + timedelta(days=1)
    door.queue.put(b"m", due_at=due_at)
    door.clock.advance(30 * 3_600)  # its period is over: its home has closed the lane
    door.client.repair()

    async def nothing(*_: object) -> list[DueLane]:
        return []

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(door.session, "datacenter", "elsewhere")
        elsewhere.setattr(Schedules, "of_year", nothing)
        assert [] == door.client.repair(full=True).problems

    assert [b"m"] == [message.body for message in drain(door.queue)]
