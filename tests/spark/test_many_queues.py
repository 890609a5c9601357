"""One query over several queues: fair shares, queues that come and go, and restarts.

See docs/design/source.md.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import DataLoss, QueueNotFound, StoreTimeout
from cassieq_spark.model.offset import INITIAL, SourceOffset
from cassieq_spark.spark import CassieqListener
from cassieq_spark.spark.source import planner as planners
from cassieq_spark.spark.source import subscription
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.testing import ManualClock, wait_until
from tests.fixtures.queues import time_stands_still
from tests.fixtures.streams import Collected, bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams

START = INITIAL.to_json()
ALL = Limits()


@pytest.fixture
def three(streams: Streams) -> list[Streams]:
    """Queues ``x.a``, ``x.b`` and ``x.c``, whatever x is."""
    return [streams.another(suffix, bucket_size=500) for suffix in "abc"]


def pattern_of(streams: Streams) -> str:
    return rf"{streams.queue.name}\.[a-z]"


@contextmanager
def run_of(streams: Streams, **options: object) -> Iterator[Planner]:
    planner = Planner.open(streams.lane.store, streams.parsed(queue=None, **options))
    try:
        yield planner
    finally:
        planner.close()


def names(queues: list[Streams]) -> str:
    return ",".join(one.queue.name for one in queues)


def taken(end: dict[str, Any]) -> Counter[str]:
    """Messages of the batch by the last letter of their queue."""
    counts: Counter[str] = Counter()
    for leased in SourceOffset.from_json(end).leases:
        counts[leased.queue[-1]] += leased.runs.count
    return counts


def counts(queues: list[Streams]) -> list[tuple[int, int]]:
    return [(one.queue.stats().visible, one.queue.stats().in_flight) for one in queues]


def fill(queues: list[Streams], *messages: int) -> None:
    for queue, count in zip(queues, messages, strict=True):
        if count:
            queue.put(queue.numbered(0, count, 1).coalesce(1))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events about queues, in order."""
    events = (message.split()[0] for message in caplog.messages)
    return [event for event in events if event.startswith("queue_")]


def test_a_batch_is_shared_evenly_and_what_one_leaves_goes_to_the_others(
    streams: Streams, three: list[Streams]
) -> None:
    fill(three, 100, 10, 100)
    with run_of(streams, queues=names(three)) as planner:
        first = planner.latest(START, Limits(at_most=90))
        assert Counter(a=40, b=10, c=40) == taken(first)
        second = planner.latest(first, Limits(at_most=90))
        assert Counter(a=45, c=45) == taken(second)
        third = planner.latest(second, Limits(at_most=90))
        assert Counter(a=15, c=15) == taken(third)
        assert third == planner.latest(third, Limits(at_most=90))
    assert [(0, 0)] * 3 == counts(three)


def test_each_queue_has_its_turn_where_a_batch_has_no_room_for_all(
    streams: Streams, three: list[Streams], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(three, 10, 10, 10)
    with run_of(streams, queues=names(three)) as planner:
        ends = [START]
        for _ in range(6):
            ends.append(planner.latest(ends[-1], Limits(at_most=2)))
    assert Counter(a=4, b=4, c=4) == sum((taken(end) for end in ends[1:]), Counter())
    assert all(2 == taken(end).total() for end in ends[1:])

    # The same where not all are asked at once.
    monkeypatch.setattr(planners, "AT_ONCE", 1)
    with run_of(streams, queues=names(three)) as planner:
        ends = [START]
        for _ in range(3):
            ends.append(planner.latest(ends[-1], Limits(at_most=1)))
    assert Counter(a=1, b=1, c=1) == sum((taken(end) for end in ends[1:]), Counter())


def test_a_batch_without_a_limit_takes_all(streams: Streams, three: list[Streams]) -> None:
    fill(three, 5, 700, 30)
    with run_of(streams, queuePattern=pattern_of(streams)) as planner:
        end = planner.latest(START, ALL)
        assert Counter(a=5, b=700, c=30) == taken(end)
        assert {one.queue.name for one in three} == {
            lane.queue for lane, _ in planner.plan(START, end)
        }
        planner.ack(end)
    assert [(0, 0)] * 3 == counts(three)


def test_bytes_are_shared_too(streams: Streams, three: list[Streams]) -> None:
    for one in three:
        one.queue.put_many([os.urandom(1_000) for _ in range(60)])
    with run_of(streams, queuePattern=pattern_of(streams)) as planner:
        end = planner.latest(START, Limits(at_most_bytes=45_000))
    assert max(taken(end).values()) - min(taken(end).values()) <= 2, taken(end)
    assert 20 <= taken(end).total() <= 60


def test_a_batch_waits_for_enough_messages_in_all_queues_together(
    streams: Streams, three: list[Streams]
) -> None:
    fill(three, 10, 10, 0)
    limits = Limits(at_least=30, wait_s=3_600)
    with run_of(streams, queues=names(three)) as planner:
        assert START == planner.latest(START, limits)
        assert [(10, 0), (10, 0), (0, 0)] == counts(three)
        fill(three, 0, 0, 10)
        assert Counter(a=10, b=10, c=10) == taken(planner.latest(START, limits))


@pytest.mark.invariant("I8")
def test_u18_a_replay_reads_what_its_offset_names_whatever_the_options_say(
    streams: Streams, three: list[Streams]
) -> None:
    a, b, c = three
    fill(three, 20, 20, 20)
    with run_of(streams, queues=names([a, b]), visibilityTimeout="30d") as died:
        end = died.latest(START, ALL)
        planned = died.plan(START, end)
    with run_of(streams, queues=names([b, c])) as restarted:
        replayed = restarted.plan(START, end)

        def runs(plan: Any) -> set[object]:
            return {(lane.queue, one.runs) for lane, some in plan for one in some}

        assert runs(planned) == runs(replayed)
        after = restarted.latest(end, ALL)
        assert Counter(c=20) == taken(after)
        assert {b.queue.name, c.queue.name} == SourceOffset.from_json(after).queues.keys()
    assert [(0, 0), (0, 0), (0, 20)] == counts(three)


def test_a_query_finds_queues_that_are_created_later(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(streams.lane.store.clock)
    monkeypatch.setattr(streams.lane.store, "clock", clock)
    with run_of(streams, queuePattern=pattern_of(streams)) as planner:
        assert START == planner.latest(START, ALL)
        late = streams.another("z")
        fill([late], 7)
        assert START == planner.latest(START, ALL)
        clock.advance(subscription.LOOK_EVERY_S + 1)
        with caplog.at_level(logging.INFO):
            end = planner.latest(START, ALL)
        assert Counter(z=7) == taken(end)
        assert ["queue_joined"] == told(caplog)


def test_available_now_reads_what_was_there_when_it_began(
    streams: Streams, three: list[Streams], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(streams.lane.store.clock)
    monkeypatch.setattr(streams.lane.store, "clock", clock)
    fill(three, 5, 5, 0)
    with run_of(streams, queuePattern=pattern_of(streams)) as planner:
        planner.aim_at_now()
        fill(three, 5, 0, 5)
        fill([streams.another("z")], 5)
        clock.advance(subscription.LOOK_EVERY_S + 1)
        end = planner.latest(START, ALL)
        assert Counter(a=5, b=5) == taken(end)
        assert end == planner.latest(end, ALL)


@pytest.mark.parametrize("how", ["queues", "queuePattern"])
def test_a_deleted_queue_fails_the_query_or_drops_out(
    streams: Streams,
    three: list[Streams],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(streams.lane.store.clock)
    monkeypatch.setattr(streams.lane.store, "clock", clock)
    a, b, c = three
    fill(three, 5, 5, 5)
    option = {"queues": names(three), "queuePattern": pattern_of(streams)}[how]
    with (
        run_of(streams, **{how: option}) as strict,
        run_of(streams, failOnDataLoss=False, **{how: option}) as lenient,
    ):
        first = lenient.latest(START, Limits(at_most=3))
        assert Counter(a=1, b=1, c=1) == taken(first)
        b.queue.delete()

        with pytest.raises(DataLoss, match=rf"queue '{b.queue.name}', .* was deleted"):
            strict.latest(START, ALL)
        with caplog.at_level(logging.WARNING):
            second = lenient.latest(first, Limits(at_most=4))
        assert Counter(a=2, c=2) == taken(second)
        assert ["queue_left"] == told(caplog)
        assert {a.queue.name, c.queue.name} == SourceOffset.from_json(second).queues.keys()

        # It joins again if it comes back, as another queue.
        again = streams.another("b", bucket_size=500)
        fill([again], 3)
        clock.advance(subscription.LOOK_EVERY_S + 1)
        third = lenient.latest(second, ALL)
        assert Counter(a=2, b=3, c=2) == taken(third)
        lenient.ack(third)
    assert ["queue_left"] == told(caplog)

    with run_of(streams, **{how: option}) as restarted, pytest.raises(DataLoss, match="again"):
        restarted.latest(first, ALL)
    again.queue.delete()
    if how == "queuePattern":
        with run_of(streams, **{how: option}) as restarted, pytest.raises(DataLoss, match="since"):
            restarted.latest(third, ALL)


def test_what_was_claimed_beside_a_queue_that_is_gone_is_given_back_uncounted(
    streams: Streams, three: list[Streams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No offset will name it [T22]."""
    fill(three, 5, 5, 5)
    with run_of(streams, queues=names(three)) as planner:
        gone = planner._subscription.queues[1]

        def deleted(*_: object, **__: object) -> object:
            raise gone.lane.deleted()

        monkeypatch.setattr(gone.reader, "get", deleted)
        with pytest.raises(DataLoss):
            planner.latest(START, ALL)
        assert {} == planner._renewal._held
    assert [(5, 0)] * 3 == counts(three)
    assert {1} == {one.delivery_count for queue in three for one in queue.queue.get(5)}


@pytest.mark.invariant("I10")
def test_a_queue_that_does_not_answer_holds_up_no_other(
    streams: Streams,
    three: list[Streams],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(three, 5, 5, 5)
    with run_of(streams, queues=names(three)) as planner:
        away = planner._subscription.queues[0]

        def silent(*_: object, **__: object) -> object:
            raise StoreTimeout("no node answers")

        with monkeypatch.context() as patched:
            patched.setattr(away.reader, "get", silent)
            patched.setattr(away.reader, "may_find", silent)
            with caplog.at_level(logging.WARNING):
                end = planner.latest(START, ALL)
            assert Counter(b=5, c=5) == taken(end)
            assert ["queue_passed_over"] == told(caplog)
            with pytest.raises(StoreTimeout):
                planner.latest(end, ALL)
        after = planner.latest(end, ALL)
        assert Counter(a=5) == taken(after)


def test_a_named_queue_must_exist(streams: Streams, three: list[Streams]) -> None:
    with (
        pytest.raises(QueueNotFound, match="no queue 'nobody'"),
        run_of(streams, queues=f"{three[0].queue.name},nobody"),
    ):
        pass


def test_a_pattern_leaves_out_queues_without_the_priority(streams: Streams) -> None:
    plain, ranked = streams.another("a"), streams.another("b", priorities=3)
    plain.queue.put(b"low")
    ranked.queue.put(b"high", priority=2)
    ranked.queue.put(b"low")
    with run_of(streams, queuePattern=pattern_of(streams), minPriority=1) as planner:
        assert Counter(b=1) == taken(planner.latest(START, ALL))


def test_an_idle_trigger_costs_two_reads_a_queue(streams: Streams, three: list[Streams]) -> None:
    fill(three, 5, 5, 5)
    with run_of(streams, queues=names(three)) as planner:
        end = planner.latest(START, ALL)
        for _ in range(3):
            assert end == planner.latest(end, ALL)
        with time_stands_still(streams.lane.store):
            assert end == planner.latest(end, ALL)  # what was old is read again
            before = streams.lane.store.session.counts.copy()
            for _ in range(10):
                assert end == planner.latest(end, ALL)
            sent = streams.lane.store.session.counts - before
        assert sent.total() <= 2 * 3 * 10, sent


def test_a_query_reads_several_queues_through_spark(streams: Streams, three: list[Streams]) -> None:
    fill(three, 300, 20, 40)
    many = streams.another("all")  # its options are the query's, but for the queue
    collected = many.drain(queue=None, queuePattern=pattern_of(streams), maxMessagesPerTrigger=100)

    assert bodies(0, 300) + bodies(0, 20) + bodies(0, 40) == collected.bodies
    by_queue = Counter(row.queue for row in collected.rows)
    assert [300, 20, 40] == [by_queue[one.queue.name] for one in three]
    assert [(0, 0)] * 3 == counts(three)


def test_the_lag_is_of_each_queue_and_of_all_together(
    streams: Streams, three: list[Streams]
) -> None:
    fill(three, 30, 0, 5)
    with run_of(streams, queues=names(three), lagInterval="0.1s") as planner:
        assert START == planner.latest(START, Limits(at_least=100, wait_s=3_600))
        wait_until(lambda: planner.report()["lag"] == 35)
        report = planner.report()
    assert names(three).replace(",", ", ") == report["queue"]
    assert [30, 0, 5] == [one["lag"] for one in report["queues"]]
    assert [one.queue.name for one in three] == [one["queue"] for one in report["queues"]]
    assert report["oldest_age_s"] > 0
    assert report["queues"][1]["oldest_age_s"] is None


def test_a_listener_serves_the_figures_of_each_queue_and_acks_the_last_batch_of_all(
    streams: Streams, three: list[Streams]
) -> None:
    fill(three, 30, 0, 5)
    listener = CassieqListener(
        contact_points=streams.options["contactPoints"], keyspace=streams.options["keyspace"]
    )
    streams.spark.streams.addListener(listener)
    try:
        collected = Collected()
        query = streams.start(
            streams.source(queue=None, queuePattern=pattern_of(streams)), collected, once=False
        )
        try:
            wait_until(lambda: collected.bodies == bodies(0, 30) + bodies(0, 5))
            wait_until(lambda: f'queue="{three[2].queue.name}"' in listener.prometheus())
            gauges = [
                line
                for line in listener.prometheus().splitlines()
                if line.startswith("cassieq_messages_in_flight{")
            ]
        finally:
            query.stop()
        assert 3 == len(gauges), gauges
        wait_until(lambda: counts(three) == [(0, 0)] * 3)
    finally:
        streams.spark.streams.removeListener(listener)


def test_views_show_several_queues(streams: Streams, three: list[Streams]) -> None:
    fill(three, 3, 4, 5)

    def read(**options: object) -> Any:
        return streams.look(queue=None, **options)

    of_pattern = {"queuePattern": pattern_of(streams)}
    two = {"queues": names(three[:2])}
    assert Counter(a=3, b=4, c=5) == Counter(row.queue[-1] for row in read(**of_pattern).collect())
    assert Counter(a=3, b=4) == Counter(row.queue[-1] for row in read(**two).collect())
    assert {"a", "b", "c"} == {
        row.queue[-1] for row in read(view="buckets", **of_pattern).collect()
    }
    for view in ("queues", "stats", "lanes"):
        assert {"a", "b"} == {row.queue[-1] for row in read(view=view, **two).collect()}
        shown = read(view=view, **of_pattern).collect()
        assert {"a", "b", "c"} == {row.queue[-1] for row in shown}
