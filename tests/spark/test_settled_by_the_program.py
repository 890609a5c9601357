"""Messages of a batch that its own program has settled: no loss, and counted once."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cassieq_spark import metrics
from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.offset import INITIAL, LeasedRuns, SourceOffset
from cassieq_spark.model.pointer import MINUTE_US
from cassieq_spark.model.settlement import Ack, Reject, Release
from cassieq_spark.options import parse_source
from cassieq_spark.queue.get.claim import give_back
from cassieq_spark.queue.settle.settle import settle_bucket
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.model.settlement import Action
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.queues import Door, OpenDoor

START = INITIAL.to_json()
ALL = Limits()
MESSAGES = 40
BAD = 9
VISIBILITY_S = 600


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    door = open_door(bucket_size=500)
    door.put(*(b"m-%d" % number for number in range(MESSAGES)))
    return door


@contextmanager
def run_of(door: Door, node: EmbeddedCassandra, **options: object) -> Iterator[Planner]:
    given = {
        "contactPoints": node.contact_points,
        "keyspace": KEYSPACE,
        "queue": door.queue.name,
        "visibilityTimeout": VISIBILITY_S,
        **options,
    }
    planner = Planner.open(door.store, parse_source(given))
    try:
        yield planner
    finally:
        planner.close()


def lease_of(end: dict[str, object]) -> LeasedRuns:
    [leased] = SourceOffset.from_json(end).leases
    return leased


def settle(door: Door, leased: LeasedRuns, action: Action, first: int, end: int) -> None:
    """What `cassieq_spark.spark.settle` does to some messages of a lease."""
    some = leased.runs.take(end)[0] - (leased.runs.take(first)[0] if first else EMPTY)
    outcome = portal.run(
        settle_bucket(door.lane, leased.place.bucket, {leased.lease_id: {action: some}})
    )
    assert end - first == outcome.judged.done(action)


@contextmanager
def no_alarm(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    before = metrics.LEASES_LOST.value
    with caplog.at_level(logging.WARNING, logger="cassieq_spark"):
        yield
    assert before == metrics.LEASES_LOST.value
    assert [] == [record.event for record in caplog.records]


def turn(door: Door, planner: Planner, seconds: float) -> None:
    """Let time pass for a task that waits in real time."""
    door.clock.advance(seconds)
    portal.portal().loop.call_soon_threadsafe(planner._renewal._changed.set)


def left_of(door: Door, end: dict[str, object]) -> Runs:
    """What nobody has acked."""
    return door.value(lease_of(end).place).unacked


@pytest.mark.parametrize(
    "verdict",
    [
        lambda _: Ack(),
        lambda _: Reject(reason="bad"),
        lambda _: Release(),
        lambda now_us: Release(due_us=now_us + MINUTE_US),
    ],
    ids=["ack", "reject", "release", "delay"],
)
def test_rows_that_were_settled_before_the_commit_are_not_late(
    door: Door,
    cassandra: EmbeddedCassandra,
    caplog: pytest.LogCaptureFixture,
    verdict: Callable[[int], Action],
) -> None:
    action = verdict(door.clock.now_us())
    with no_alarm(caplog), run_of(door, cassandra) as planner:
        end = planner.latest(START, ALL)
        settle(door, lease_of(end), action, 0, BAD)
        planner.ack(end)
    assert (0 if action == Ack() else BAD) == left_of(door, end).count


def test_rejected_rows_are_not_late_when_the_next_run_acks_their_batch(
    door: Door, cassandra: EmbeddedCassandra, caplog: pytest.LogCaptureFixture
) -> None:
    with no_alarm(caplog):
        with run_of(door, cassandra) as died:
            end = died.latest(START, ALL)
            settle(door, lease_of(end), Reject(reason="bad"), 0, BAD)
        with run_of(door, cassandra) as restarted:
            assert end == restarted.latest(end, ALL)
    assert BAD == left_of(door, end).count


def test_a_batch_whose_rows_were_all_rejected_before_a_crash_is_not_lost(
    door: Door, cassandra: EmbeddedCassandra, caplog: pytest.LogCaptureFixture
) -> None:
    with no_alarm(caplog):
        with run_of(door, cassandra) as died:
            end = died.latest(START, ALL)
            settle(door, lease_of(end), Reject(reason="bad"), 0, MESSAGES)
        with run_of(door, cassandra, onLeaseLost="fail") as restarted:
            assert [] == restarted.plan(START, end)


def test_a_lease_that_was_rejected_whole_while_its_batch_runs_is_not_lost(
    door: Door, cassandra: EmbeddedCassandra, caplog: pytest.LogCaptureFixture
) -> None:
    with no_alarm(caplog), run_of(door, cassandra) as planner:
        end = planner.latest(START, ALL)
        settle(door, lease_of(end), Reject(reason="bad"), 0, MESSAGES)
        turn(door, planner, VISIBILITY_S / 3)
        wait_until(lambda: not planner._renewal._held, describe="a renewal that finds it")
        planner.ack(end)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("gives_back", [False, True])
def test_a_part_that_another_consumer_got_is_late_though_the_rest_was_renewed(
    door: Door, cassandra: EmbeddedCassandra, caplog: pytest.LogCaptureFixture, *, gives_back: bool
) -> None:
    """The lease is there and has not run out, but it had.

    A claim that was answered late is given back uncounted: no later delivery shows the loss.
    """
    lost_before = metrics.LEASES_LOST.value
    with (
        caplog.at_level(logging.WARNING, logger="cassieq_spark"),
        run_of(door, cassandra) as planner,
    ):
        end = planner.latest(START, ALL)
        door.clock.advance(VISIBILITY_S + 1)  # no renewal sees it before `turn`
        [other] = portal.run(door.reader().get(BAD))
        assert BAD == other.lease.runs.count
        if gives_back:
            portal.run(give_back([other]))
        renewals = metrics.LEASE_RENEWALS.value
        turn(door, planner, 0)
        wait_until(lambda: metrics.LEASE_RENEWALS.value > renewals, describe="a renewal")
        planner.ack(end)
    late = [record.fields for record in caplog.records if record.event == "acks_expired"]
    about = (door.lane.queue, other.bucket, BAD)
    assert [about] == [(one["queue"], one["bucket"], one["messages"]) for one in late]
    assert lost_before + 1 == metrics.LEASES_LOST.value
    assert other.lease.runs == left_of(door, end)


def test_a_replayed_batch_counts_what_its_own_run_has_delivered(
    door: Door, cassandra: EmbeddedCassandra
) -> None:
    """``ackMode`` manual: an earlier run's acks are not this run's."""
    with run_of(door, cassandra, ackMode="manual") as died:
        end = died.latest(START, ALL)
        settle(door, lease_of(end), Ack(), 0, BAD)
    with run_of(door, cassandra, ackMode="manual") as restarted:
        [(_, [planned])] = restarted.plan(START, end)
        assert MESSAGES - BAD == planned.runs.count
        settle(door, lease_of(end), Ack(), BAD, MESSAGES)
        before = metrics.MESSAGES_ACKED.value
        restarted.ack(end)
        assert MESSAGES - BAD == metrics.MESSAGES_ACKED.value - before
