"""Redrive: dead letters go back, or on, exactly once, whatever dies (ADR 16)."""

from __future__ import annotations

import json
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model import dead_letter
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.dead import REDRIVE
from cassieq_spark.model.dead_letter import HISTORY, headers_of, history_of, moved
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.repair import redrive
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cassieq_spark import Delivery
    from tests.fixtures.queues import Door, OpenDoor

FIVE = [b"%d" % number for number in range(5)]


def died(open_door: OpenDoor, bodies: Iterable[bytes] = FIVE) -> tuple[Door, Door]:
    """(queue, its dead-letter queue, where these were moved)."""
    graves = open_door(".dead")
    door = open_door(max_deliveries=1, dead_letter_queue=graves.queue.name)
    door.queue.put_many(list(bodies), tag="t")
    while messages := door.queue.get(100):
        door.queue.reject(messages, reason="timeout")
    door.client.repair(door.queue.name)
    return door, graves


def got(queue: cassieq.Queue) -> list[bytes]:
    """All that is visible, acked; sorted."""
    found: list[bytes] = []
    while messages := queue.get(100):
        found += [one.body for one in messages]
        queue.ack(messages)
    return sorted(found)


def repair_later(door: Door) -> list[str]:
    door.clock.advance(3_600)
    return door.client.repair(door.queue.name).problems


def test_dead_letters_go_back_to_their_queue_with_their_history(open_door: OpenDoor) -> None:
    door, graves = died(open_door, [b"m"])
    (letter,) = graves.queue.peek()

    done = graves.client.redrive(graves.queue.name)

    assert (1, 0, {door.queue.name: 1}, []) == (
        done.moved,
        done.waiting,
        done.by_target,
        done.problems,
    )
    (back,) = door.queue.get()
    assert (letter.message_id, b"m", "t", 1) == (
        back.message_id,
        back.body,
        back.tag,
        back.delivery_count,
    )
    assert [(door.queue.name, "timeout", "1"), (graves.queue.name, REDRIVE, "0")] == [
        (hop["source-queue"], hop["reason"], hop["deliveries"])
        for hop in json.loads(back.headers[HISTORY])
    ]
    assert [] == graves.queue.get()
    assert {"drained"} == graves.queue.stats().buckets.keys()
    assert [] == graves.client.verify(graves.queue.name).findings


def test_a_redriven_message_dies_and_is_redriven_again(open_door: OpenDoor) -> None:
    door, graves = died(open_door, [b"m"])
    for _ in range(2):
        assert 1 == graves.client.redrive(graves.queue.name).moved
        door.queue.reject(door.queue.get(), reason="still")
        door.client.repair(door.queue.name)
    (letter,) = graves.queue.peek()
    assert ["timeout", REDRIVE, "still", REDRIVE, "still"] == [
        hop["reason"] for hop in json.loads(letter.headers[HISTORY])
    ]


def test_a_redriven_message_says_that_it_was_redriven_and_not_that_it_died(
    open_door: OpenDoor,
) -> None:
    door, graves = died(open_door, [b"m"])
    (letter,) = graves.queue.peek()
    graves.client.redrive(graves.queue.name)
    (back,) = door.queue.peek()
    assert {"cassieq-reason": REDRIVE} == {
        name: text for name, text in back.headers.items() if name != HISTORY
    }
    assert [door.queue.name, graves.queue.name] == [
        hop["source-queue"] for hop in history_of(back.headers)
    ]
    died_at, sent_at = (hop["last-time"] for hop in history_of(back.headers))
    assert headers_of(letter.headers).last_time == datetime.fromisoformat(died_at)
    assert died_at < sent_at


@pytest.mark.parametrize("older", [False, True])
def test_a_live_queue_is_not_redriven_unless_a_target_is_named(
    open_door: OpenDoor, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip after a redrive: what it sent back says where it was, if an older release sent it."""
    door, graves = died(open_door, [b"redriven"])
    if older:
        monkeypatch.setattr(dead_letter, "moved", as_an_older_release)
    graves.client.redrive(graves.queue.name)
    monkeypatch.undo()
    door.queue.put(b"never died")

    for more in ({}, {"dry_run": True}, {"messages": door.queue.peek()}, {"where": bool}):
        with pytest.raises(OptionInvalid, match=r"no queue names .* name a queue with 'to'"):
            door.client.redrive(door.queue.name, **more)
    assert (2, 0) == (door.queue.stats().visible, graves.queue.stats().visible)

    other = open_door(".other")
    assert 2 == door.client.redrive(door.queue.name, to=other.queue.name).moved


@pytest.mark.parametrize("older", [False, True])
def test_a_queue_between_two_sends_back_what_died_and_keeps_what_was_redriven(
    open_door: OpenDoor, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the dead-letter queue of one, and has one. Whoever rejects may say "redrive", too."""
    middle, graves = died(open_door, [b"redriven"])
    first = open_door(".first", max_deliveries=1, dead_letter_queue=middle.queue.name)
    first.queue.put_many([b"a", b"b"])
    a, b = sorted(first.queue.get(2), key=lambda one: one.body)
    first.queue.reject(a, reason="timeout")
    first.queue.reject(b, reason=REDRIVE)
    first.client.repair(first.queue.name)
    if older:
        monkeypatch.setattr(dead_letter, "moved", as_an_older_release)
    graves.client.redrive(graves.queue.name)
    monkeypatch.undo()

    done = middle.client.redrive(middle.queue.name)

    assert ({first.queue.name: 2}, 1) == (done.by_target, done.homeless)
    (problem,) = done.problems
    assert ("were redriven from" if older else "no source queue") in problem
    assert ([b"a", b"b"], [b"redriven"]) == (got(first.queue), got(middle.queue))


def as_an_older_release(
    headers: Mapping[str, str], hop: Mapping[str, str], *, dies: bool
) -> dict[str, str]:
    """What it wrote was the same whether a message died or was redriven."""
    del dies
    return moved(headers, hop, dies=True)


def test_they_go_elsewhere_if_told_so(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    other = open_door(".other")
    graves.queue.put(b"put there by hand")
    done = graves.client.redrive(graves.queue.name, to=other.queue.name)
    assert {other.queue.name: 6} == done.by_target
    assert [*FIVE, b"put there by hand"] == got(other.queue)
    assert [] == got(door.queue)


def test_each_goes_back_to_its_own_queue(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    second = open_door(".second", max_deliveries=1, dead_letter_queue=graves.queue.name)
    second.queue.put_many([b"x", b"y"])
    second.queue.reject(second.queue.get(), reason="other")
    second.client.repair(second.queue.name)

    done = graves.client.redrive(graves.queue.name)

    assert {door.queue.name: 5, second.queue.name: 2} == done.by_target
    assert (FIVE, [b"x", b"y"]) == (got(door.queue), got(second.queue))


def test_a_filter_ids_and_a_limit_choose(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    client, name = graves.client, graves.queue.name
    letters = {one.body: one for one in graves.queue.peek()}

    assert 1 == client.redrive(name, where=lambda one: one.body == b"3").moved
    assert 2 == client.redrive(name, [letters[b"0"], letters[b"2"].id]).moved
    assert 1 == client.redrive(name, max_messages=1).moved
    again = client.redrive(name, [letters[b"0"], letters[b"4"]], max_messages=2)
    assert (1, 1) == (again.moved, again.gone)
    assert 0 == client.redrive(name, []).moved
    assert FIVE == got(door.queue)


@pytest.mark.invariant("I2")
def test_what_somebody_holds_stays_and_is_counted(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    held = graves.queue.get(2)
    graves.queue.put(b"later", delay=600)

    by_filter = graves.client.redrive(
        graves.queue.name, where=lambda one: one.body == held[0].body, to=door.queue.name
    )
    done = graves.client.redrive(graves.queue.name, to=door.queue.name)

    assert (0, 1) == (by_filter.moved, by_filter.leased)
    assert (3, 2, 1) == (done.moved, done.leased, done.delayed)
    graves.queue.ack(held)
    assert sorted(FIVE) == sorted([*got(door.queue), *(one.body for one in held)])


@pytest.mark.invariant("I3")
def test_a_receipt_whose_lease_ran_out_is_stale_once_the_message_is_redriven(
    open_door: OpenDoor,
) -> None:
    door, graves = died(open_door, [b"m"])
    held = graves.queue.get(visibility_timeout=5)
    graves.clock.advance(60)
    assert 1 == graves.client.redrive(graves.queue.name).moved
    assert ["already_acked"] == graves.queue.ack_each(held)
    assert [b"m"] == got(door.queue)


def test_what_was_acked_is_not_redriven(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    graves.queue.ack(graves.queue.get(4))
    assert 1 == graves.client.redrive(graves.queue.name).moved
    assert 1 == len(got(door.queue))


def test_an_updated_body_goes_along(open_door: OpenDoor) -> None:
    door, graves = died(open_door, [b"old"])
    (letter,) = graves.queue.get()
    graves.queue.update(letter, body=b"mended", visibility_timeout=0)
    graves.client.redrive(graves.queue.name, where=lambda one: one.body == b"mended")
    assert [b"mended"] == got(door.queue)


def test_open_and_prepared_buckets_are_redriven_as_a_get_would_find_them(
    open_door: OpenDoor,
) -> None:
    graves, target, reader = open_door(), open_door(".to"), open_door()
    graves.queue.put(b"in an open bucket")
    graves.faults.before("update_bucket", crash)  # committed, not rolled forward
    with pytest.raises(Crash):
        graves.put_batch(0, b"committed")
    graves.task(graves.identity("r2", sink_id="undecided"), 0, b"not committed")

    done = reader.client.redrive(reader.queue.name, to=target.queue.name)

    assert 2 == done.moved
    assert [b"committed", b"in an open bucket"] == got(target.queue)


def test_a_dry_run_counts_and_changes_nothing(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    before = graves.queue.stats()
    done = graves.client.redrive(graves.queue.name, max_messages=3, dry_run=True)
    assert ({door.queue.name: 3}, 0, 0) == (done.by_target, done.moved, done.waiting)
    after = graves.queue.stats()
    assert (before.visible, before.applied_lwts) == (after.visible, after.applied_lwts)


# --- where to -------------------------------------------------------------------------------------


def test_those_without_a_queue_to_go_to_stay_and_say_why(open_door: OpenDoor) -> None:
    door, graves = died(open_door, [b"of a queue that is gone"])
    graves.queue.put(b"put there by hand")
    graves.queue.put(b"no name", headers={"cassieq-source-queue": "a b"})
    graves.queue.put(b"itself", headers={"cassieq-source-queue": graves.queue.name})
    open_door(".alive", dead_letter_queue=graves.queue.name)
    door.queue.delete()

    done = graves.client.redrive(graves.queue.name)

    assert (0, 4, {}) == (done.moved, done.homeless, done.by_target)
    text = "\n".join(done.problems)
    for word in (door.queue.name, "headers name no source queue", "'a b'", "this very queue"):
        assert word in text
    assert 4 == graves.queue.stats().visible


def test_a_wrong_target_is_refused_before_anything_is_taken(open_door: OpenDoor) -> None:
    _, graves = died(open_door)
    client, name = graves.client, graves.queue.name
    with pytest.raises(OptionInvalid, match="which has the messages already"):
        client.redrive(name, to=name)
    with pytest.raises(cassieq.QueueNotFound, match=r"no\.such"):
        client.redrive(name, to="no.such")
    with pytest.raises(OptionInvalid, match="a message's id"):
        client.redrive(name, [-1])
    (letter, *_) = graves.queue.peek()
    wrong: list[Any] = [{}, {"a": 1}, set(), "", "x", b"", 0, 7, letter, object()]
    for messages in wrong:
        with pytest.raises(OptionInvalid, match="a list of messages or of their ids"):
            client.redrive(name, messages)
    with pytest.raises(OptionInvalid, match="where is str"):
        client.redrive(name, where="tag = 'x'")  # type: ignore[arg-type]  # wrong on purpose
    assert 5 == graves.queue.stats().visible


def test_a_message_of_another_queue_is_refused_and_not_taken_for_one_of_this(
    open_door: OpenDoor,
) -> None:
    door, graves = died(open_door)
    door.queue.put(b"not dead")
    (seen,) = door.queue.peek()
    (other,) = door.queue.get()
    for one in (seen, other):
        with pytest.raises(OptionInvalid, match="is not of queue"):
            graves.client.redrive(graves.queue.name, [one])
    assert 5 == graves.queue.stats().visible


def test_a_target_deleted_in_mid_redrive_keeps_its_messages_until_it_is_there_again(
    open_door: OpenDoor,
) -> None:
    door, graves = died(open_door)
    graves.faults.before("insert_sink", door.queue.delete)

    done = graves.client.redrive(graves.queue.name)

    assert (0, 5) == (done.moved, done.waiting)
    assert door.queue.name in "\n".join(done.problems)
    (problem,) = graves.client.repair(graves.queue.name).problems
    assert f"redriven to {door.queue.name!r} when that queue was deleted" in problem
    assert 5 == graves.queue.stats().dead

    anew = open_door(max_deliveries=1, dead_letter_queue=graves.queue.name)
    assert [] == repair_later(graves)
    assert FIVE == got(anew.queue)
    assert 0 == graves.queue.stats().dead


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("step", ["insert_bucket", "update_sink", "delete_sink"])
def test_a_mover_that_died_for_a_target_that_is_another_queue_now_holds_nobody_up(
    open_door: OpenDoor, step: str
) -> None:
    door, graves = died(open_door)
    graves.faults.before(step, crash)
    with pytest.raises(Crash):
        graves.client.redrive(graves.queue.name)
    door.queue.delete()
    anew = open_door(max_deliveries=1, dead_letter_queue=graves.queue.name)
    other = open_door(".dead")
    assert [] == repair_later(other)
    # At the last step they were in the queue that was deleted, with all it held.
    assert ([] if step == "delete_sink" else FIVE) == got(anew.queue)
    assert 0 == other.queue.stats().dead


@pytest.mark.invariant("I1")
def test_a_target_that_goes_just_before_the_commit_takes_nothing_with_it(
    open_door: OpenDoor,
) -> None:
    door, graves = died(open_door)
    graves.faults.before("update_sink", door.queue.delete)
    done = graves.client.redrive(graves.queue.name)
    assert (0, 5) == (done.moved, done.waiting)
    anew = open_door(max_deliveries=1, dead_letter_queue=graves.queue.name)
    assert [] == repair_later(graves)
    assert FIVE == got(anew.queue)


# --- once, whatever dies --------------------------------------------------------------------------

STEPS = (
    ("read_messages", 0),
    ("update_bucket", 0),  # takes them
    ("insert_sink", 0),
    ("insert_bucket", 0),
    ("write_message", 0),
    ("fill_bucket", 0),
    ("update_sink", 0),
    ("update_bucket", 1),  # makes them visible there
    ("update_bucket", 2),  # takes the set out here
    ("delete_sink", 0),
)


@pytest.mark.invariant("I7")
@pytest.mark.parametrize(("step", "after"), STEPS)
def test_a_redrive_that_dies_before_any_step_is_finished_by_a_repair(
    open_door: OpenDoor, step: str, after: int
) -> None:
    door, graves = died(open_door)
    other = open_door(".dead")
    graves.faults.before(step, crash, after=after)
    with pytest.raises(Crash):
        graves.client.redrive(graves.queue.name)

    assert [] == repair_later(other)

    is_taken = (step, after) not in STEPS[:2]
    assert ([] if is_taken else FIVE) == sorted(one.body for one in other.queue.peek())
    assert (FIVE if is_taken else []) == got(door.queue)
    assert 0 == other.queue.stats().dead
    assert [] == other.client.verify(other.queue.name).findings


@pytest.mark.invariant("I7")
@pytest.mark.parametrize(("step", "after"), STEPS)
def test_a_redrive_that_sleeps_before_any_step_while_another_and_a_repair_do_all(
    open_door: OpenDoor, step: str, after: int
) -> None:
    door, graves = died(open_door)
    other = open_door(".dead")

    def faster() -> None:
        other.clock.advance(60)
        other.client.redrive(other.queue.name)
        other.client.repair(other.queue.name)

    graves.faults.before(step, faster, after=after)
    done = graves.client.redrive(graves.queue.name)

    assert [] == done.problems
    assert FIVE == got(door.queue)
    assert (0, 0) == (other.queue.stats().dead, other.queue.stats().visible)


@pytest.mark.invariant("I7")
def test_two_redrives_at_once_send_each_once(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    second, elsewhere = open_door(".dead"), open_door(".elsewhere")
    done: list[redrive.Redriven] = []

    def one(by: Door, to: str) -> None:
        by.faults.park("update_bucket", 1)
        done.append(by.client.redrive(by.queue.name, to=to))

    both = [
        threading.Thread(target=one, args=(graves, door.queue.name)),
        threading.Thread(target=one, args=(second, elsewhere.queue.name)),
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    assert 5 == sum(report.moved for report in done)
    assert FIVE == sorted([*got(door.queue), *got(elsewhere.queue)])


@pytest.mark.invariant("I7")
def test_answers_that_are_lost_redrive_nothing_twice(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    for step in ("update_bucket", "insert_sink", "fill_bucket", "update_sink", "delete_sink"):
        graves.faults.plan(step, Fault.TIMEOUT_AFTER)
    assert 5 == graves.client.redrive(graves.queue.name).moved
    assert FIVE == got(door.queue)
    assert 0 == graves.queue.stats().dead


@pytest.mark.invariant("I4")
def test_what_a_consumer_gets_just_before_the_cas_stays_its_own(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    other = open_door(".dead")
    held: list[Delivery] = []
    graves.faults.before("update_bucket", lambda: held.extend(other.queue.get(3)))
    done = graves.client.redrive(graves.queue.name)
    assert (2, 3) == (done.moved, len(held))
    other.queue.ack(held)
    assert sorted(FIVE) == sorted([*got(door.queue), *(one.body for one in held)])


def test_a_set_that_waits_is_foreseen_and_counted_by_repair(open_door: OpenDoor) -> None:
    door, graves = died(open_door)
    graves.faults.before("insert_sink", crash)
    with pytest.raises(Crash):
        graves.client.redrive(graves.queue.name)
    (foreseen,) = graves.client.repair(graves.queue.name, dry_run=True).queues
    (done,) = graves.client.repair(graves.queue.name).queues
    assert [(5, 0), (5, 0)] == [(one.redriven, one.moved_dead) for one in (foreseen, done)]
    assert FIVE == got(door.queue)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_it_costs_by_buckets_and_not_by_messages(open_door: OpenDoor) -> None:
    target = open_door(".to", bucket_size=1_000)
    graves = open_door(bucket_size=1_000)
    graves.put_batch(0, *(b"%d" % number for number in range(300)))
    before = graves.counts
    assert 300 == graves.client.redrive(graves.queue.name, to=target.queue.name).moved
    lwts = sum(
        count
        for name, count in (graves.counts - before).items()
        if name.startswith(("insert_", "update_", "fill_", "delete_"))
    )
    assert lwts <= 12, graves.counts - before


def test_nothing_is_redriven_from_a_ghost(open_door: OpenDoor) -> None:
    """A row below the repair pointer that came back is of a bucket in which all is over (G5)."""
    door, graves = died(open_door)
    bucket = next(
        BucketNo(at)
        for at in range(8)
        if (row := graves.row(at)) is not None and row.value.status is Status.SEALED
    )

    def drop() -> None:
        portal.run(graves.lane.pointers.advance(Pointer.REPAIR, bucket + 1))

    graves.faults.before("update_bucket", drop)
    done = graves.client.redrive(graves.queue.name)
    assert (0, 0) == (done.moved, done.waiting)
    assert [] == got(door.queue)
