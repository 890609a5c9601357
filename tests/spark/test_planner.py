"""The planner by itself: claims, replays, acks, and what another run does to it.

See docs/design/source.md.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import DataLoss, LeaseLost, StoreTimeout, StreamFenced
from cassieq_spark.model.offset import INITIAL, SourceOffset, by_bucket
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.queue.settle import batches
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Away, FaultyStore
from tests.fixtures.queues import time_stands_still
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.spark.source.planner import Plan
    from tests.fixtures.streams import Streams

START = INITIAL.to_json()
ALL = Limits()


@contextmanager
def run_of(streams: Streams, **options: object) -> Iterator[Planner]:
    planner = Planner.open(streams.lane.store, streams.parsed(**options))
    try:
        yield planner
    finally:
        planner.close()


def test_the_same_start_has_the_same_answer_and_claims_nothing(streams: Streams) -> None:
    """What a second claim took would be named by no offset, and come back a timeout late [P23]."""
    streams.put(streams.numbered(0, 800))
    with run_of(streams) as planner:
        end = planner.latest(START, Limits(at_most=300))
        before = streams.queue.stats()

        assert end == planner.latest(START, Limits(at_most=300))
        assert replace(before, oldest_age=None) == replace(streams.queue.stats(), oldest_age=None)
        assert 300 == before.in_flight


def test_past_its_target_the_answer_is_the_start(streams: Streams) -> None:
    """The end of Trigger.AvailableNow [P23]."""
    streams.put(streams.numbered(0, 400))
    with run_of(streams) as planner:
        planner.aim_at_now()
        streams.put(streams.numbered(400, 700))

        end = planner.latest(START, ALL)
        assert 400 == sum(runs.runs.count for runs in SourceOffset.from_json(end).leases)
        assert end == planner.latest(end, ALL)
        assert (300, 0) == (streams.queue.stats().visible, streams.queue.stats().in_flight)


@pytest.mark.invariant("I8")
def test_a_second_run_takes_the_leases_over_at_once(streams: Streams) -> None:
    """Not after the visibility timeout of the run that died [P25]."""
    streams.put(streams.numbered(0, 900))
    with run_of(streams, visibilityTimeout="30d") as died:
        end = died.latest(START, ALL)
        planned = died.plan(START, end)
    with run_of(streams) as restarted:
        assert _by_bucket(planned) == _by_bucket(restarted.plan(START, end))

        assert {restarted.run} == {lease.run for lease in streams.leases}
        restarted.ack(end)
    assert streams.is_empty()


@pytest.mark.invariant("I4")
def test_an_ack_asks_for_the_lease_and_not_for_the_run(streams: Streams) -> None:
    """The offset is in the commit log: whoever runs now may ack it [R17]."""
    streams.put(streams.numbered(0, 900))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
    with run_of(streams) as restarted:
        assert end == restarted.latest(end, ALL)
    assert streams.is_empty()


@pytest.mark.invariant("I4")
def test_the_ack_runs_beside_the_next_claim_and_ends_with_it(streams: Streams) -> None:
    """Not later: no restart would ack a batch whose successor Spark has logged already."""
    streams.put(streams.numbered(0, 1_000).coalesce(1))
    with run_of(streams) as planner:
        first = planner.latest(START, Limits(at_most=500))
        with FaultyStore().on(streams.lane.store.session) as faults:
            faults.park("update_bucket", 2)  # neither goes on without the other
            planner.latest(first, Limits(at_most=500))

        assert (0, 500) == (streams.queue.stats().visible, streams.queue.stats().in_flight)


def test_an_ack_comes_before_a_claim_that_may_meet_it_in_a_row(streams: Streams) -> None:
    streams.put(streams.numbered(0, 500).coalesce(1))
    with time_stands_still(streams.lane.store), run_of(streams) as planner:
        first = planner.latest(START, Limits(at_most=300))
        counts = streams.lane.store.session.counts
        before = counts["update_bucket"]
        planner.latest(first, Limits(at_most=300))

        assert 2 == counts["update_bucket"] - before
    assert (0, 200) == (streams.queue.stats().visible, streams.queue.stats().in_flight)


@pytest.mark.invariant("I4")
def test_what_another_consumer_has_by_now_is_not_acked_by_the_old_lease(streams: Streams) -> None:
    streams.put(streams.numbered(0, 200).coalesce(1))
    with run_of(streams) as planner:
        end = planner.latest(START, ALL)
        with streams.in_an_hour() as later:
            [theirs] = portal.run(streams.consumer(later).get(50))
            planner.ack(end)

            assert [theirs.lease.lease_id] == [lease.lease_id for lease in streams.leases]
    # What ran out and nobody has taken was its own still [R20].
    assert (0, 50) == (streams.queue.stats().visible, streams.queue.stats().in_flight)


def test_a_run_that_was_overtaken_is_fenced_and_never_takes_its_leases_back(
    streams: Streams,
) -> None:
    """Two runs on one checkpoint, or on a copy of it [P25] [R17]."""
    streams.put(streams.numbered(0, 900))
    with run_of(streams, visibilityTimeout="0.3s") as first, run_of(streams) as second:
        end = first.latest(START, ALL)
        second.plan(START, end)

        wait_until(lambda: first._renewal._fenced is not None, describe="a renewal")
        with pytest.raises(StreamFenced, match=r"another run of this checkpoint"):
            first.latest(end, ALL)
        with pytest.raises(StreamFenced):
            first.ack(end)
        assert {second.run} == {lease.run for lease in streams.leases}
    assert 900 == streams.queue.stats().in_flight


@pytest.mark.parametrize("on_lease_lost", ["skip", "fail"])
def test_what_another_consumer_got_meanwhile_is_left_out_or_fails(
    streams: Streams, on_lease_lost: str
) -> None:
    """It is processed elsewhere; nothing is claimed in its place [P11]."""
    streams.put(streams.numbered(0, 900))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
        planned = _by_bucket(died.plan(START, end))
    with streams.in_an_hour() as later:
        taken = {one.bucket for one in portal.run(streams.consumer(later).get(450))}
    lost_before = metrics.LEASES_LOST.value
    with run_of(streams, onLeaseLost=on_lease_lost) as restarted:
        if on_lease_lost == "fail":
            with pytest.raises(LeaseLost, match=r"^\[cassieq:lease_lost\] 450 messages of bucket"):
                restarted.plan(START, end)
            return
        left = {bucket: runs for bucket, runs in planned.items() if bucket not in taken}
        assert 1 == len(left)
        assert left == _by_bucket(restarted.plan(START, end))
        assert lost_before + 1 == metrics.LEASES_LOST.value
        restarted.ack(end)
    assert 450 == streams.queue.stats().in_flight


def test_a_bucket_that_was_dropped_counts_as_acked_and_says_so(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    """Failing would fail every restart, for messages that nobody has lost [P12]."""
    streams.put(streams.numbered(0, 900))
    lane = streams.lane
    with run_of(streams) as died:
        end = died.latest(START, ALL)
        died.ack(end)
    used = sorted({leased.place.bucket for leased in SourceOffset.from_json(end).leases})
    for bucket in used:
        portal.run(lane.pointers.advance(Pointer.REPAIR, bucket + 1))
        driver_of(lane.store.session).session.execute(
            f"DELETE FROM {lane.store.session.keyspace}.bucket "  # noqa: S608 - a test's own
            "WHERE lane = %s AND bucket = %s IF EXISTS",
            (lane.lane_id, bucket),
        )
    lost_before = metrics.LEASES_LOST.value

    with (
        run_of(streams, onLeaseLost="fail") as restarted,
        caplog.at_level(logging.WARNING, logger="cassieq_spark"),
    ):
        assert [] == restarted.plan(START, end)

    assert lost_before + len(used) == metrics.LEASES_LOST.value
    fields = [record.fields for record in caplog.records if record.event == "lease_lost_on_replay"]
    assert [(bucket, True) for bucket in used] == sorted(
        (each["bucket"], each["dropped"]) for each in fields
    )


def test_a_purge_under_a_replay_is_data_loss_or_left_out_as_asked(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    streams.put(streams.numbered(0, 900))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
    streams.queue.purge()
    lost_before = metrics.LEASES_LOST.value

    with run_of(streams) as restarted, pytest.raises(DataLoss, match="was purged while this query"):
        restarted.plan(START, end)
    with run_of(streams, failOnDataLoss=False) as restarted:
        with caplog.at_level(logging.WARNING, logger="cassieq_spark"):
            assert [] == restarted.plan(START, end)
        assert end == restarted.latest(end, ALL)
    assert 900 == sum(
        record.fields["messages"] for record in caplog.records if record.event == "batch_purged"
    )
    assert lost_before == metrics.LEASES_LOST.value


def test_a_checkpoint_of_another_keyspace_is_told_from_a_queue_that_was_created_again(
    streams: Streams,
) -> None:
    streams.put(streams.numbered(0, 10))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
    name, (lane, *_) = end["queues"][0]
    elsewhere = json.loads(json.dumps(end).replace(lane, str(new_uuid())))
    told = rf"another keyspace or cluster: its queue '{name}' was never in keyspace '\w+' here"

    with run_of(streams) as other, pytest.raises(DataLoss, match=told):
        other.plan(START, elsewhere)

    client = streams.client
    streams.queue.delete()
    client.create_queue(name)
    with run_of(streams) as again, pytest.raises(DataLoss, match="deleted and created again"):
        again.plan(START, end)


def test_what_was_acked_before_a_purge_is_no_loss(streams: Streams) -> None:
    streams.put(streams.numbered(0, 900))
    with run_of(streams) as died:
        end = died.latest(START, Limits(at_most=400))
        died.ack(end)
    streams.queue.purge()
    with run_of(streams) as restarted:
        assert [] == restarted.plan(START, end)


@pytest.mark.invariant("I2")
def test_t5_leases_that_were_taken_over_are_held_while_another_bucket_does_not_answer(
    streams: Streams,
) -> None:
    """A restart whose first bucket is away must not let the others run out."""
    for first in range(0, 40, 10):
        streams.put(streams.numbered(first, first + 10, 1))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
    away, *others = sorted({leased.place for leased in SourceOffset.from_json(end).leases})
    with run_of(streams) as restarted, FaultyStore().on(streams.lane.store.session) as faults:
        faults.unreachable(away.bucket, how=Away.STANDS_STILL)
        with ThreadPoolExecutor(1) as pool:
            planning = pool.submit(restarted.plan, START, end)
            try:
                wait_until(lambda: set(others) <= restarted._renewal._held.keys())
                assert not planning.done()
            finally:
                faults.reachable()
            assert 40 == sum(
                planned.runs.count for _, some in planning.result() for planned in some
            )


@pytest.mark.invariant("I10")
def test_t22_what_was_claimed_is_handed_out_though_more_cannot_be_had(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger that wants more gets again; that get fails."""
    streams.put(streams.numbered(0, 40, 1))
    with run_of(streams) as planner:
        [queue] = planner._subscription.queues
        reader, asked = queue.reader, []
        get = reader.get

        def once(at_most: int, **more: object) -> object:
            asked.append(at_most)
            if len(asked) > 1:
                raise StoreTimeout("no bucket answers")
            return get(min(at_most, 10), **more)  # type: ignore[arg-type]

        monkeypatch.setattr(reader, "get", once)
        end = planner.latest(START, Limits(at_least=30, at_most=40))
        assert 10 == sum(leased.runs.count for leased in SourceOffset.from_json(end).leases)
        assert 2 == len(asked)


def test_t22_what_was_claimed_beside_an_ack_that_failed_is_given_back_uncounted(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No offset will name it."""
    streams.put(streams.numbered(0, 100, 1).coalesce(1))
    streams.put(streams.numbered(100, 200, 1).coalesce(1))
    with run_of(streams) as planner:
        first = planner.latest(START, Limits(at_most=100))

        def fails(*_args: object, **_more: object) -> int:
            raise StoreTimeout("the ack was not answered")

        monkeypatch.setattr("cassieq_spark.spark.source.one_queue.ack_leases", fails)
        with pytest.raises(StoreTimeout):
            planner.latest(first, Limits(at_most=100))
        assert (100, 100) == (streams.queue.stats().visible, streams.queue.stats().in_flight)
        monkeypatch.undo()
        assert {1} == {one.lease.delivery_count for one in portal.run(streams.consumer().get(100))}


def test_acks_are_counted_when_they_are_found_once_however_often_they_are_asked_for(
    streams: Streams,
) -> None:
    streams.put(streams.numbered(0, 90, 1))
    before = metrics.MESSAGES_ACKED.value
    with run_of(streams) as planner:
        end = planner.latest(START, ALL)
        planner.ack(end)
    with run_of(streams) as restarted:
        assert end == restarted.latest(end, ALL)
    assert 90 == metrics.MESSAGES_ACKED.value - before


def test_messages_that_a_program_has_settled_itself_are_counted_with_their_batch(
    streams: Streams,
) -> None:
    """``ackMode`` manual: what was released is not done."""
    streams.put(streams.numbered(0, 90, 1).coalesce(1))
    with run_of(streams, ackMode="manual") as planner:
        end = planner.latest(START, ALL)
        done = by_bucket(SourceOffset.from_json(end).leases)
        portal.run(
            batches.ack_leases(
                streams.lane,
                {
                    bucket: {lease: runs.take(60)[0] for lease, runs in leases.items() if runs}
                    for bucket, leases in done.items()
                },
            )
        )
        before = metrics.MESSAGES_ACKED.value
        planner.ack(end)
        planner.ack(end)
        assert 60 == metrics.MESSAGES_ACKED.value - before
    with run_of(streams, ackMode="manual") as restarted:
        restarted.ack(end)
    assert 60 == metrics.MESSAGES_ACKED.value - before


def test_a_plan_is_made_once_per_run_and_batch(streams: Streams) -> None:
    """A second action must not find fewer rows because a lease was lost in between [P11]."""
    streams.put(streams.numbered(0, 900))
    with run_of(streams) as died:
        end = died.latest(START, ALL)
    with run_of(streams) as restarted:
        planned = restarted.plan(START, end)
        with streams.in_an_hour() as later:
            portal.run(streams.consumer(later).get(450))

        assert planned == restarted.plan(START, end)


def _by_bucket(plan: Plan) -> dict[int, object]:
    return {planned.bucket: planned for _, some in plan for planned in some}
