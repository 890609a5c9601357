"""The sink row decides what became of a batch, and nothing else does.

See docs/design/sink.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.errors import SinkDiverged, SinkFenced, SinkIdReused
from cassieq_spark.model import sink_txn as rules
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.sink_txn import (
    PAST_RUNS,
    AlreadyCommitted,
    BucketList,
    Commit,
    Fate,
    Identity,
    Listed,
    NothingToDo,
    Register,
    SinkRow,
    TaskResult,
    WriteUnder,
)

LANE = LaneId(UUID(int=1))
WHO = Identity(sink_id="s", lane=LANE, query_id="q", checkpoint="/c", run="r1")
OTHER_LANE = LaneId(UUID(int=2))
EARLIER = BucketList.of([(Place(LANE, BucketNo(3)), 10), (Place(LANE, BucketNo(4)), 10)])


def at(number: int, lane: LaneId = LANE) -> Place:
    return Place(lane, BucketNo(number))


def sink(**parts: Any) -> SinkRow:
    """After batch 4, committed by run r1."""
    values = {
        "lane": LANE,
        "changed_us": 1,
        "epoch": 7,
        "last": 4,
        "listed": EARLIER,
        "query_id": "q",
        "checkpoint": "/c",
        "run": "r1",
        **parts,
    }
    return SinkRow(**values)


def result(epoch: int | None = 7, *buckets: tuple[int, int], who: Identity = WHO) -> TaskResult:
    return TaskResult(
        who=who,
        epoch=epoch,
        buckets=tuple((at(number), count) for number, count in buckets),
    )


def by_run(run: str) -> Identity:
    return replace(WHO, run=run)


def test_a_list_is_kept_as_runs_of_equal_buckets() -> None:
    listed = BucketList.of((at(number), count) for number, count in [(5, 9), (4, 10), (3, 10)])
    assert (
        Listed(lane=LANE, first=BucketNo(3), last=BucketNo(4), count=10),
        Listed(lane=LANE, first=BucketNo(5), last=BucketNo(5), count=9),
    ) == listed.runs
    assert [(at(3), 10), (at(4), 10), (at(5), 9)] == list(listed)
    assert 29 == listed.messages
    assert [False, True, True, True, False] == [at(number) in listed for number in range(2, 7)]
    assert 3 not in listed
    assert "3" not in listed


def test_u6_a_list_keeps_buckets_of_one_number_in_two_lanes_apart() -> None:
    there = at(4, OTHER_LANE)
    listed = BucketList.of([(there, 10), (at(3), 10)])
    assert (
        Listed(lane=LANE, first=BucketNo(3), last=BucketNo(3), count=10),
        Listed(lane=OTHER_LANE, first=BucketNo(4), last=BucketNo(4), count=10),
    ) == listed.runs
    assert [True, False, False, True] == [
        place in listed for place in (at(3), at(4), at(3, OTHER_LANE), there)
    ]


def test_a_task_writes_under_the_epoch_it_read() -> None:
    assert WriteUnder(epoch=7) == rules.admit(sink(), WHO, 5)


@pytest.mark.invariant("I7")
def test_a_replay_of_the_last_batch_writes_nothing() -> None:
    assert AlreadyCommitted() == rules.admit(sink(), WHO, 4)


@pytest.mark.parametrize(
    "other",
    [{"query_id": "q2"}, {"checkpoint": "/copy"}, {"lane": OTHER_LANE}],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.invariant("I7")
def test_p9_another_query_checkpoint_or_queue_may_not_write_under_the_id(
    other: dict[str, Any],
) -> None:
    with pytest.raises(SinkIdReused) as refused:
        rules.admit(sink(), replace(WHO, **other), 5)
    assert "s" == refused.value.sink_id


def test_r24_a_row_that_nobody_has_committed_under_still_belongs_to_its_queue() -> None:
    fresh = rules.new_row(Identity(sink_id="s", lane=LANE), now_us=1)
    assert WriteUnder(epoch=1) == rules.admit(fresh, WHO, 0)
    with pytest.raises(SinkIdReused, match="another queue"):
        rules.admit(fresh, replace(WHO, lane=OTHER_LANE), 0)


def test_a_superseded_run_is_fenced_for_good() -> None:
    with pytest.raises(SinkFenced, match="r0"):
        rules.admit(sink(past=("r0",)), by_run("r0"), 5)


@pytest.mark.invariant("I7")
def test_r4_a_batch_older_than_the_last_is_diverged_never_skipped() -> None:
    with pytest.raises(SinkDiverged) as refused:
        rules.admit(sink(), WHO, 3)
    assert_a_second_query_comes_first(str(refused.value))
    assert_a_second_query_comes_first(f"{SinkDiverged.meaning} {SinkDiverged.remedy}")


def test_a_sink_of_another_query_may_still_be_written_by_it() -> None:
    with pytest.raises(SinkIdReused) as refused:
        rules.admit(sink(), replace(WHO, query_id="q2"), 5)
    assert_a_second_query_comes_first(str(refused.value))
    assert_a_second_query_comes_first(f"{SinkIdReused.meaning} {SinkIdReused.remedy}")


def assert_a_second_query_comes_first(text: str) -> None:
    """While another query runs, a sink that is forgotten may get a batch twice."""
    before, call, _ = text.partition("client.forget_sink(")
    assert call
    assert "stop" in before.lower()
    assert "query" in before.lower()


@pytest.mark.invariant("I7")
def test_r26_a_second_write_of_one_run_in_one_batch_is_refused_where_asked() -> None:
    with pytest.raises(SinkIdReused, match="two writes"):
        rules.admit(sink(), WHO, 4, refuse_second_write=True)
    replay = rules.admit(sink(), by_run("r2"), 4, refuse_second_write=True)
    assert AlreadyCommitted() == replay
    outside = replace(WHO, run=None, query_id=None, checkpoint=None)
    row = sink(run=None, query_id=None, checkpoint=None)
    assert AlreadyCommitted() == rules.admit(row, outside, 4, refuse_second_write=True)


@pytest.mark.invariant("I7")
def test_p10_a_commit_rolls_the_list_it_overwrites_forward_first() -> None:
    decision = rules.decide(
        sink(aborts=3), WHO, 5, [result(7, (9, 1)), result(7, (8, 1))], now_us=2
    )
    listed = BucketList.of([(at(8), 1), (at(9), 1)])
    expected = sink(changed_us=2, epoch=8, last=5, listed=listed, aborts=0)
    assert Commit(row=expected, roll_first=EARLIER) == decision


def test_p10_a_batch_of_no_buckets_commits_too() -> None:
    decision = rules.decide(sink(), WHO, 5, [result(7)], now_us=2)
    assert isinstance(decision, Commit)
    assert (5, 8, BucketList()) == (
        decision.row.last,
        decision.row.epoch,
        decision.row.listed,
    )


@pytest.mark.parametrize(
    "results",
    [[result(6, (8, 1))], [result(7, (8, 1)), result(8, (9, 1))], [result(7), result(None)]],
    ids=["aborted meanwhile", "two epochs", "one has skipped"],
)
@pytest.mark.invariant("I7")
def test_r1_the_row_must_show_the_epoch_that_every_task_wrote_under(
    results: list[TaskResult],
) -> None:
    with pytest.raises(SinkFenced, match="epoch"):
        rules.decide(sink(), WHO, 5, results, now_us=2)


def test_r5_the_commit_registers_the_run_and_supersedes_the_old_one() -> None:
    decision = rules.decide(sink(past=("r0",)), by_run("r2"), 5, [result()], now_us=2)
    assert isinstance(decision, Commit)
    assert ("r2", ("r0", "r1")) == (decision.row.run, decision.row.past)
    with pytest.raises(SinkFenced):
        rules.admit(decision.row, WHO, 6)


def test_r5_so_many_superseded_runs_are_remembered_the_newest_of_them() -> None:
    past = tuple(f"p{number}" for number in range(PAST_RUNS))
    decision = rules.decide(sink(past=past), by_run("r2"), 5, [result()], now_us=2)
    assert isinstance(decision, Commit)
    assert (*past[1:], "r1") == decision.row.past


def test_a_commit_that_is_repeated_by_its_run_has_nothing_to_do() -> None:
    assert NothingToDo() == rules.decide(sink(), WHO, 4, [result(6)], now_us=2)


def test_a_restarted_run_whose_tasks_all_skipped_takes_the_row_over() -> None:
    decision = rules.decide(sink(), by_run("r2"), 4, [result(None), result(None)], now_us=2)
    assert Register(row=sink(changed_us=2, run="r2", past=("r1",))) == decision


@pytest.mark.invariant("I7")
def test_p1_what_another_run_committed_meanwhile_is_not_committed_twice() -> None:
    with pytest.raises(SinkFenced, match="r1"):
        rules.decide(sink(), by_run("r2"), 4, [result(6, (8, 1)), result(None)], now_us=2)


def test_r3_an_abort_ends_the_epoch_with_nothing_in_it_and_is_counted() -> None:
    assert sink(changed_us=2, epoch=8, listed=BucketList(), aborts=2) == rules.abort(
        sink(aborts=1), now_us=2
    )


def test_a_forgotten_sink_takes_a_new_checkpoint_and_its_epoch_goes_on() -> None:
    row = rules.forget(sink(past=("r0",)), lane=OTHER_LANE, now_us=2)
    assert (8, -1, ("r0", "r1")) == (row.epoch, row.last, row.past)
    who = Identity(sink_id="s", lane=OTHER_LANE, query_id="q9", checkpoint="/n", run="r9")
    assert WriteUnder(epoch=8) == rules.admit(row, who, 0)
    with pytest.raises(SinkFenced):
        rules.admit(row, replace(who, run="r1"), 0)


@pytest.mark.parametrize(
    ("place", "epoch", "expected"),
    [
        (at(3), 7, Fate.UNDECIDED),
        (at(3), 8, Fate.UNDECIDED),
        (at(3), 6, Fate.SEAL),
        (at(5), 6, Fate.VOID),
        (at(3, OTHER_LANE), 6, Fate.VOID),
        (at(3), 5, Fate.VOID),
    ],
    ids=["present", "later than read", "listed", "unlisted", "another lane's", "long ago"],
)
@pytest.mark.invariant("I7")
def test_p1_the_row_alone_decides_about_a_bucket(place: Place, epoch: int, expected: Fate) -> None:
    assert expected is rules.fate(sink(), place=place, epoch=epoch)


def test_p1_a_row_that_is_gone_has_decided() -> None:
    assert Fate.VOID is rules.fate(None, place=at(3), epoch=1)
