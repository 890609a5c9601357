"""One row that cannot be read stops nobody but who wants it, and nothing of it is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import RowCorrupt, StoreError
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.sink_txn import TaskResult
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.report import FINDINGS
from cassieq_spark.store import portal
from cassieq_spark.store.side_by_side import WIDTH
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash
from tests.fixtures.transports import intercept, run_cql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.store.statements import Statement
    from tests.fixtures.queues import Door, OpenDoor


SET_CLAIMS = "UPDATE {ks}.bucket SET claims = ? WHERE lane = ? AND bucket = ? IF EXISTS"


class Spoiler:
    """Writes something else over what rows hold, and puts it back."""

    def __init__(self) -> None:
        self._put_back: list[tuple[Door, int, bytes]] = []

    def __call__(self, door: Door, bucket: int) -> None:
        """The row of a bucket, by hand: Cassandra takes any bytes."""
        read = "SELECT claims FROM {ks}.bucket WHERE lane = ? AND bucket = ?"
        (was,) = run_cql(door.session, read, door.lane.lane_id, bucket)
        self._put_back.append((door, bucket, bytes(was.claims)))
        run_cql(door.session, SET_CLAIMS, b"\xc1", door.lane.lane_id, bucket)

    def restore(self, door: Door, bucket: int) -> None:
        """As an operator does from a backup."""
        (claims,) = (was for _, at, was in self._put_back if at == bucket)
        self._put_back = [one for one in self._put_back if one[1] != bucket]
        run_cql(door.session, SET_CLAIMS, claims, door.lane.lane_id, bucket)

    def restore_all(self) -> None:
        """What is left would be a problem of every later repair of all queues."""
        for door, bucket, _ in self._put_back:
            self.restore(door, bucket)


@pytest.fixture(scope="module")
def keyspace() -> str:
    """What cannot be read here is named wherever all queues of a keyspace are looked at."""
    return "cassieq_corrupt"


@pytest.fixture
def spoil(open_door: OpenDoor) -> Iterator[Spoiler]:  # noqa: ARG001 - its clients are open longer
    spoiler = Spoiler()
    yield spoiler
    spoiler.restore_all()


def batches(door: Door, *bodies: bytes) -> list[TaskResult]:
    """A committed transaction each, of a sink each."""
    results = []
    for body in bodies:
        who = door.identity(sink_id=f"{door.queue.name}:{body.decode()}")
        results.append(door.task(who, 0, body))
        door.commit(who, 0, results[-1])
    return results


# --- a bucket row ---------------------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_t21_a_get_goes_on_with_all_others_and_says_which_row_it_cannot_read(
    door: Door, caplog: pytest.LogCaptureFixture, spoil: Spoiler
) -> None:
    batches(door, b"a", b"b", b"c")
    spoil(door, 1)
    assert [b"a", b"c"] == door.drain()
    assert [] == portal.run(door.reader().get(10))
    told = [one for one in caplog.records if one.message.startswith("bucket_row_corrupt")]
    assert told
    assert "bucket=1" in told[0].message
    door.queue.put(b"later")
    assert [b"later"] == door.drain()


@pytest.mark.invariant("I1")
def test_t21_no_pointer_passes_a_row_that_cannot_be_read_and_it_is_delivered_when_it_can(
    open_door: OpenDoor,
    spoil: Spoiler,
) -> None:
    door, other = open_door(), open_door()
    batches(door, b"a", b"b", b"c")
    spoil(door, 1)
    for one in (door, other):
        assert one.drain() == ([b"a", b"c"] if one is door else [])
        for _ in range(2):
            one.clock.advance(3_600)
            assert any("bucket 1 " in what for what in one.client.repair(one.queue.name).problems)
    pointers = portal.run(door.lane.read_pointers())
    assert (1, 1) == (pointers.reader, pointers.repair)
    spoil.restore(door, 1)
    assert [b"b"] == other.drain()
    assert [] == other.client.verify(other.queue.name).findings


@pytest.mark.invariant("I1")
def test_t21_what_is_leased_in_a_row_that_cannot_be_read_comes_back_when_it_can(
    open_door: OpenDoor,
    spoil: Spoiler,
) -> None:
    door, other = open_door(), open_door()
    batches(door, b"a", b"b")
    assert 2 == len(door.queue.get(10, visibility_timeout=5))
    spoil(door, 0)
    for one in (door, other):
        one.clock.advance(3_600)
    assert [b"b"] == other.drain()
    spoil.restore(door, 0)
    other.client.repair(other.queue.name)
    assert [b"a"] == other.drain()


def test_t21_a_producer_leaves_a_bucket_whose_row_cannot_be_read(
    open_door: OpenDoor, spoil: Spoiler
) -> None:
    door, other = open_door(linger=0.01), open_door(linger=0.01)
    door.queue.put(b"a")
    assert [b"a"] == other.drain()
    spoil(door, 0)
    door.clock.advance(1)
    door.queue.put(b"b")
    assert [b"b"] == other.drain()


def test_t21_looks_pass_over_it_and_count_it(door: Door, spoil: Spoiler) -> None:
    batches(door, b"a", b"b", b"c")
    spoil(door, 1)
    assert {"sealed": 2, "corrupt": 1} == door.queue.stats().buckets
    assert 2 == door.queue.stats().visible
    assert [b"a", b"c"] == [one.body for one in door.queue.peek(10)]
    assert 2 == portal.run(door.reader().count(10))


def test_t21_repair_heals_the_buckets_beside_it_and_names_it(
    open_door: OpenDoor, spoil: Spoiler
) -> None:
    graves = open_door(".dead")
    door = open_door(max_deliveries=1, dead_letter_queue=graves.queue.name)
    batches(door, b"a", b"b", b"c")
    assert 3 == len(door.queue.get(10, visibility_timeout=5))
    door.clock.advance(60)
    assert [] == door.queue.get()
    spoil(door, 1)
    (foreseen,) = door.client.repair(door.queue.name, dry_run=True).queues
    (done,) = door.client.repair(door.queue.name).queues
    for report in (foreseen, done):
        assert 2 == report.moved_dead
        assert any("bucket 1 " in what for what in report.problems)
    spoil.restore(door, 1)
    assert 1 == door.client.repair(door.queue.name).queues[0].moved_dead
    assert 3 == len(graves.drain())


@pytest.mark.invariant("I7")
def test_t21_the_row_of_a_move_stays_while_nobody_knows_whether_its_set_is_there(
    open_door: OpenDoor, spoil: Spoiler
) -> None:
    """Without it the set would be moved again."""
    graves = open_door(".dead")
    door, other = (
        open_door(max_deliveries=1, dead_letter_queue=graves.queue.name) for _ in range(2)
    )
    batches(door, b"a")
    assert 1 == len(door.queue.get(10, visibility_timeout=5))
    door.clock.advance(60)
    assert [] == door.queue.get()
    door.faults.before("update_bucket", crash, after=1)  # moved, and not taken out here
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    spoil(door, 0)
    other.clock.advance(2 * 86_400)
    other.client.repair()
    spoil.restore(door, 0)
    other.client.repair()
    assert 0 == other.queue.stats().dead
    assert [b"a"] == graves.drain()


def test_t21_a_purge_drops_all_others_and_says_which_it_could_not(
    door: Door, spoil: Spoiler
) -> None:
    batches(door, b"a", b"b", b"c")
    spoil(door, 1)
    with pytest.raises(RowCorrupt, match="bucket 1 "):
        door.queue.purge()
    spoil.restore(door, 1)
    assert [b"b"] == door.drain()


def test_t21_a_redrive_passes_over_it_and_says_so(open_door: OpenDoor, spoil: Spoiler) -> None:
    target = open_door(".target")
    door = open_door()
    batches(door, b"a", b"b", b"c")
    spoil(door, 1)
    done = door.client.redrive(door.queue.name, to=target.queue.name)
    assert 2 == done.moved
    assert any("bucket 1 " in what for what in done.problems)
    assert [b"a", b"c"] == target.drain()


def test_t21_an_ack_and_a_replay_of_it_are_told_and_change_nothing(
    door: Door, open_door: OpenDoor, spoil: Spoiler
) -> None:
    """To leave them out in silence would be to lose or to double them (I1, I4, I8).

    The client that got the message knows the row as it was, and its ack would write it anew.
    """
    batches(door, b"a")
    (message,) = door.queue.get()
    spoil(door, 0)
    queue = open_door().queue
    for call in (queue.ack, queue.extend, queue.release):
        with pytest.raises(StoreError, match="bucket 0 "):
            call(*((message, 30) if call == queue.extend else (message,)))


def test_t21_a_verify_names_it_and_goes_on(door: Door, spoil: Spoiler) -> None:
    batches(door, b"a", b"b")
    assert [] == door.client.verify(door.queue.name).findings
    spoil(door, 0)
    found = door.client.verify(door.queue.name)
    assert [("row_corrupt", 0)] == [(one.kind, one.bucket) for one in found.findings]
    assert (2, 1) == (found.buckets, found.messages)
    assert "row_corrupt" in FINDINGS


# --- stored messages ------------------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_t21_stored_messages_that_cannot_be_read_are_in_no_other_get(door: Door) -> None:
    batches(door, b"a", b"b", b"c")
    spoil = (
        "UPDATE {ks}.message SET payload = ? "
        "WHERE lane = ? AND bucket = ? AND first = ? AND part = ?"
    )
    run_cql(door.session, spoil, b"\0", door.lane.lane_id, 0, 0, 0)
    assert [b"b", b"c"] == sorted(one.body for one in door.queue.get(10))
    assert 3 == door.queue.stats().in_flight
    door.queue.put(b"later")
    assert [b"later"] == [one.body for one in door.queue.get(10)]
    door.clock.advance(60)
    with pytest.raises(RowCorrupt):
        door.queue.get(1)
    assert 1 == len(door.queue.get(1))


# --- a sink ---------------------------------------------------------------------------------------


def left_half_way(door: Door, *bodies: bytes) -> list[TaskResult]:
    """Committed by drivers that died right behind it: a sink each."""
    results = []
    for body in bodies:
        who = door.identity(sink_id=f"{door.queue.name}:{body.decode()}")
        results.append(door.task(who, 0, body))
        door.faults.before("update_bucket", crash)
        with pytest.raises(Crash):
            door.commit(who, 0, results[-1])
        assert Status.PREPARED is door.value(results[-1].buckets[0][0]).status
    return results


def spoil_sink(door: Door, sink_id: str) -> None:
    spoil = "UPDATE {ks}.sink SET past = ? WHERE sink_id = ? IF EXISTS"
    run_cql(door.session, spoil, b"\xc1", sink_id)


@pytest.mark.invariant("I10")
def test_t21_one_sink_that_cannot_be_read_hides_no_others_batch(door: Door) -> None:
    half = left_half_way(door, b"a", b"b", b"c")
    spoil_sink(door, half[1].who.sink_id)
    assert [b"a", b"c"] == door.drain()
    assert [] == portal.run(door.reader().get(10))
    assert Status.PREPARED is door.value(half[1].buckets[0][0]).status
    assert 0 == door.queue.stats().visible


def test_t21_repair_carries_out_what_other_sinks_decided_and_names_the_one(door: Door) -> None:
    half = left_half_way(door, b"a", b"b", b"c")
    spoil_sink(door, half[1].who.sink_id)
    (done,) = door.client.repair(door.queue.name).queues
    assert 2 == done.rolled_forward
    assert any(half[1].who.sink_id in what for what in done.problems)


@pytest.mark.invariant("I7")
def test_t21_one_bucket_of_a_batch_that_cannot_be_published_hides_no_other(
    door: Door, spoil: Spoiler
) -> None:
    """Of more buckets than are worked on at once: the first fails before the last are begun."""
    who = door.identity()
    result = door.task(who, 0, *(b"%d" % number for number in range(400)))
    assert 40 == len(result.buckets) > 2 * WIDTH
    spoil(door, result.buckets[0][0].bucket)
    with pytest.raises(RowCorrupt):
        door.commit(who, 0, result)
    published = [door.value(bucket).status for bucket, _ in result.buckets[1:]]
    assert {Status.SEALED} == set(published)


@pytest.mark.invariant("I10")
def test_t21_one_bucket_that_holds_another_number_than_is_listed_hides_no_other(
    door: Door,
) -> None:
    """It answers the look, as all others do, and is found out beside them."""
    who = door.identity()
    result = door.task(who, 0, *(b"%d" % number for number in range(400)))
    (place, count), *others = result.buckets
    with pytest.raises(RowCorrupt, match=f"holds {count} messages"):
        door.commit(who, 0, replace(result, buckets=((place, count + 1), *others)))
    assert {Status.SEALED} == {door.value(bucket).status for bucket, _ in others}


@pytest.mark.invariant("I10")
def test_t21_what_is_not_known_of_one_sink_is_told_only_where_nothing_else_is_found(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas are away: "none" would be a guess."""
    monkeypatch.setattr("cassieq_spark.store.session.DEADLINE_S", 0.2)
    half = left_half_way(door, b"a", b"b")
    unanswered = half[0].who.sink_id
    intercept(door.session, Unanswered(door, unanswered))
    reader = door.reader()
    assert [b"b"] == door.bodies(portal.run(reader.get(10)))
    with pytest.raises(StoreError):
        portal.run(reader.get(10))
    intercept(door.session, None)
    assert [b"a"] == door.bodies(portal.run(reader.get(10)))


class Unanswered:
    """Swallows what is asked about one sink, as replicas that are away do."""

    def __init__(self, door: Door, sink_id: str) -> None:
        self._door = door
        self._sink_id = sink_id

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        if self._sink_id in params:
            self._door.faults.plan(statement.name, Fault.TIMEOUT_BEFORE)
            return self._door.faults.around(statement, params, proceed)
        return proceed()


def test_t21_a_commit_of_a_stream_tells_its_driver(door: Door, spoil: Spoiler) -> None:
    """What it has committed before is not visible, and its list may not go (I7) [P10]."""
    half = left_half_way(door, b"a")
    spoil(door, half[0].buckets[0][0].bucket)
    who = half[0].who
    result = door.task(who, 1, b"next")
    with pytest.raises(RowCorrupt):
        portal.run(transaction.commit(door.lane, who, 1, [result]))
    stored = portal.run(door.store.sinks.read(who.sink_id))
    assert stored is not None
    assert 0 == stored.value.last


@pytest.mark.invariant("I1")
def test_t21_what_came_back_while_its_row_could_not_be_read_is_found_by_the_next_repair(
    open_door: OpenDoor, spoil: Spoiler
) -> None:
    """The time pointer does not wait for it: a get would read all hints since, every time."""
    door, other = open_door(), open_door()
    door.queue.put(b"m")
    assert 1 == len(door.queue.get(visibility_timeout=30))
    spoil(door, 0)
    for one in (door, other):
        one.clock.advance(3_600)
    portal.run(other.reader().count(1))
    spoil.restore(door, 0)
    door.client.repair(door.queue.name)
    assert [b"m"] == other.drain()
