"""A time pointer that a wrong clock has moved, hints written late, leases that run out too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark import metrics
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.pointer import Pointer, minute_of
from cassieq_spark.model.settlement import Release
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.getter import read_in_time
from cassieq_spark.queue.get.reader import QUIET_FOR_S
from cassieq_spark.queue.get.scan import POINTERS_FOR_S
from cassieq_spark.queue.settle import settle
from cassieq_spark.store import portal
from tests.fixtures.queues import to_the_next_minute

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.queues import Door, OpenDoor

HOUR_S = 3_600.0


def minute_now(door: Door) -> int:
    return minute_of(door.lane.clock.now_us())


def time_pointer(door: Door) -> int:
    return portal.run(door.lane.pointers.read()).time


def look_with_a_clock_ahead(wrong: Door, ahead_s: float = HOUR_S) -> None:
    """Moves the time pointer as far, in a queue that holds nothing yet."""
    wrong.clock.advance(ahead_s)
    assert [] == wrong.queue.get()
    assert time_pointer(wrong) > minute_now(wrong) - 4


def pass_time(*doors: Door, seconds: float) -> None:
    for door in doors:
        door.clock.advance(seconds)


# --- the pointer is ahead of now ------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_t7_what_comes_back_is_found_though_the_time_pointer_is_an_hour_ahead(
    open_door: OpenDoor,
) -> None:
    good, wrong = open_door(), open_door()
    look_with_a_clock_ahead(wrong)
    good.queue.put_many([b"%d" % number for number in range(5)])
    held = good.queue.get(5)
    assert time_pointer(good) - minute_now(good) > 50

    good.queue.release(held)

    assert 5 == len(good.queue.get(5))


@pytest.mark.invariant("I10")
def test_t7_a_long_poll_hears_of_it_too(open_door: OpenDoor) -> None:
    good, wrong = open_door(visibility_timeout=5), open_door(visibility_timeout=5)
    look_with_a_clock_ahead(wrong)
    good.queue.put(b"m")
    assert 1 == len(good.queue.get())
    reader = good.reader()
    assert [] == portal.run(reader.get(1))
    assert reader.since is not None

    good.clock.advance(QUIET_FOR_S / 2)  # it is not yet time for a whole look

    assert portal.run(reader.may_find())


@pytest.mark.invariant("I10")
def test_t7_a_reader_carries_hints_over_to_a_pointer_that_is_ahead(open_door: OpenDoor) -> None:
    """Who wrote the hint had not seen the pointer, and nobody looks when the hint falls due."""
    good, wrong = open_door(), open_door()
    good.queue.put(b"m")
    (held,) = good.queue.get()
    wrong.clock.advance(HOUR_S)
    portal.run(wrong.lane.pointers.advance(Pointer.TIME, minute_now(wrong) - 2))
    good.queue.release(held, delay=1_200)
    good.clock.advance(POINTERS_FOR_S)
    assert [] == good.queue.get()  # somebody looks while the pointer is ahead

    good.clock.advance(HOUR_S + 180)
    assert time_pointer(good) < minute_now(good)

    assert [b"m"] == [message.body for message in good.queue.get()]


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("step", ["claim", "extend", "release", "put delayed"])
def test_t7_a_hint_written_below_the_pointer_is_found_when_now_has_reached_it(
    open_door: OpenDoor, step: str
) -> None:
    """Nobody looks in between: what is hinted is found by the first look after the hour."""
    good, wrong = open_door(visibility_timeout=300), open_door(visibility_timeout=300)
    look_with_a_clock_ahead(wrong)
    if step == "put delayed":
        bucket = good.put(b"m", delay_s=600)
        assert portal.run(seal.close(good.lane, bucket)) is not None
        portal.run(good.lane.pointers.advance(Pointer.READER, bucket + 1))
    else:
        good.queue.put(b"m")
        (held,) = good.queue.get()
    if step == "extend":
        good.queue.extend(held, 600)
    elif step == "release":
        good.queue.release(held, delay=600)

    good.clock.advance(HOUR_S + 180)
    assert time_pointer(good) < minute_now(good)

    assert [b"m"] == [message.body for message in good.queue.get()]


@pytest.mark.invariant("I10")
def test_t7_a_claim_that_the_pointer_overtakes_by_an_hour_is_hinted_behind_it(
    open_door: OpenDoor,
) -> None:
    good, wrong = open_door(visibility_timeout=300), open_door(visibility_timeout=300)
    wrong.clock.advance(HOUR_S)
    good.put_batch(0, b"m")

    def overtake() -> None:
        portal.run(wrong.lane.pointers.advance(Pointer.TIME, minute_now(wrong) - 2))

    good.faults.before("update_bucket", overtake)
    assert 1 == len(good.queue.get())

    good.clock.advance(HOUR_S + 180)

    assert [b"m"] == [message.body for message in good.queue.get()]


@pytest.mark.invariant("I10")
def test_t7_what_a_client_an_hour_behind_has_claimed_and_left_comes_back(
    open_door: OpenDoor,
) -> None:
    """Its lease ends in the past of all others, at a minute that the pointer passed long since."""
    good, behind = open_door(), open_door()
    good.clock.advance(HOUR_S)
    portal.run(good.reader().get(1))  # the pointer goes with the right time
    assert minute_now(behind) + 50 < time_pointer(good)
    behind.queue.put(b"m")
    assert 1 == len(behind.queue.get())

    good.clock.advance(120)

    assert [b"m"] == [message.body for message in good.queue.get()]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t7_a_pointer_that_is_ahead_is_carried_over_once(open_door: OpenDoor) -> None:
    """What is written for it does not grow with the looks."""
    good, wrong = open_door(visibility_timeout=600), open_door(visibility_timeout=600)
    look_with_a_clock_ahead(wrong)
    good.queue.put(b"m")
    good.queue.get()
    reader = good.reader()
    portal.run(reader.get(1))
    before = good.counts["write_hint"]

    for _ in range(3):
        portal.run(reader.get(1))

    assert before == good.counts["write_hint"]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t7_a_time_pointer_that_is_right_costs_no_further_statement(open_door: OpenDoor) -> None:
    """A put, a get, a release, a get, an ack: a hint for the leases, and one for what is back."""
    good = open_door()
    good.queue.put(b"first")
    good.queue.ack(good.queue.get())
    to_the_next_minute(good)
    before = good.counts

    good.queue.put(b"m")
    good.queue.release(good.queue.get(visibility_timeout=120))
    good.queue.ack(good.queue.get(visibility_timeout=120))

    spent = good.counts - before
    assert 2 == spent["write_hint"]  # both leases end in the same minute
    slices = (spent["read_hints"] + spent["read_old_hints"]) / spent["read_monoton"]
    assert slices <= 2  # the minutes since the queue was made: of two hours, if one ends just now


# --- hints that come late -------------------------------------------------------------------------


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("step", ["release", "extend"])
@pytest.mark.parametrize("late", ["update_bucket", "write_hint"])
def test_t7_a_change_that_took_minutes_is_hinted_again(
    open_door: OpenDoor, step: str, late: str
) -> None:
    """The client was suspended between its hint and its CAS, or as it wrote the hint: meanwhile the
    pointer has passed the minute of the hint, for nothing came back in it."""
    slow, quick = open_door(visibility_timeout=1_800), open_door(visibility_timeout=1_800)
    slow.queue.put(b"m")
    (held,) = slow.queue.get()

    def sleep() -> None:
        pass_time(slow, quick, seconds=600)
        assert [] == quick.queue.get()
        assert minute_now(quick) - 3 < time_pointer(quick)

    slow.faults.before(late, sleep)
    change: dict[str, Callable[[], object]] = {
        "release": lambda: slow.queue.release(held),
        "extend": lambda: slow.queue.extend(held, 1),
    }
    change[step]()

    pass_time(slow, quick, seconds=2)
    assert [b"m"] == [message.body for message in quick.queue.get()]


@pytest.mark.invariant("I10")
def test_t7_a_hint_whose_write_took_minutes_is_written_again(open_door: OpenDoor) -> None:
    """Also where it is the hint that makes good for a CAS that took minutes."""
    slow, quick, fresh = open_door(), open_door(), open_door()
    slow.put_batch(0, b"m")
    (claimed,) = portal.run(slow.reader(visibility_s=1_800).get(1))
    assert [] == quick.queue.get()  # the reader pointer passes it

    def sleep() -> None:
        pass_time(slow, quick, fresh, seconds=600)
        quick.queue.get()
        assert minute_now(quick) - 3 < time_pointer(quick)

    def take_minutes() -> None:
        sleep()
        slow.faults.before("write_hint", sleep)

    slow.faults.before("update_bucket", take_minutes)
    portal.run(
        settle.settle_bucket(
            slow.lane, claimed.bucket, settle.of_leases([claimed.lease.lease_id], Release())
        )
    )

    # The other one's next look begins with the pointers of its last one, and would find it anyhow.
    assert [b"m"] == [message.body for message in fresh.queue.get()]


@pytest.mark.invariant("I10")
def test_t7_a_seal_that_took_minutes_is_hinted_again(open_door: OpenDoor) -> None:
    """Who looks meanwhile has enough before it comes to that bucket, and passes its hints."""
    slow, quick = open_door(), open_door()
    slow.put_batch(0, b"a")
    bucket = slow.put(b"m", delay_s=300)

    def sleep() -> None:
        pass_time(slow, quick, seconds=600)
        assert 1 == portal.run(quick.reader()._scanner.scan(1)).available
        assert minute_now(quick) - 3 < time_pointer(quick)

    slow.faults.before("fill_bucket", sleep)
    assert portal.run(seal.close(slow.lane, bucket)) is not None
    portal.run(quick.lane.pointers.advance(Pointer.READER, bucket + 1))

    assert [b"m"] == [message.body for message in quick.queue.get()]


# --- what runs out while its bodies are read ------------------------------------------------------


@pytest.mark.invariant("I2")
def test_t17_a_get_hands_out_nothing_that_ran_out_while_bodies_were_read(
    open_door: OpenDoor,
) -> None:
    slow, quick = open_door(), open_door()
    slow.put_sealed(b"m")
    lost = metrics.LEASES_LOST.value
    taken: list[bytes] = []

    def sleep() -> None:
        pass_time(slow, quick, seconds=2)
        taken.extend(message.body for message in quick.queue.get())

    slow.faults.before("read_messages", sleep)

    assert [] == slow.queue.get(visibility_timeout=1)
    assert [b"m"] == taken
    assert lost + 1 == metrics.LEASES_LOST.value


@pytest.mark.invariant("I2")
def test_t17_a_get_that_read_too_slowly_claims_for_longer_and_uses_up_one_delivery(
    door: Door,
) -> None:
    door.put_sealed(b"m")
    for read in range(2):
        door.faults.before("read_messages", lambda: door.clock.advance(3), after=read)

    (message,) = door.queue.get(visibility_timeout=1)

    assert 1 == message.delivery_count
    assert us_of(message.visible_until) > door.lane.clock.now_us()


def test_t17_a_get_that_reads_slowly_each_time_claims_for_longer(door: Door) -> None:
    door.put_sealed(b"m")
    for read in range(10):
        door.faults.before("read_messages", lambda: door.clock.advance(3), after=read)

    assert [b"m"] == [message.body for message in door.queue.get(visibility_timeout=1)]


@pytest.mark.invariant("I10")
def test_t17_a_get_whose_process_stood_still_once_claims_for_no_longer(door: Door) -> None:
    """Found by a seed of the simulation: if the consumer died now, nobody saw the message for long.

    A laptop that was closed, or a machine that was moved.
    """
    door.put_sealed(b"m")
    door.faults.before("read_messages", lambda: door.clock.advance(3_600))

    (message,) = door.queue.get(visibility_timeout=30)

    assert us_of(message.visible_until) <= door.lane.clock.now_us() + 30_000_000


def test_t17_a_get_that_can_read_nothing_in_time_says_so(door: Door) -> None:
    door.put_sealed(b"m")
    waits = iter(10.0**power for power in range(1, 20))
    for read in range(12):
        door.faults.before("read_messages", lambda: door.clock.advance(next(waits)), after=read)

    with pytest.raises(
        StoreTimeout, match=r"ran out \d+ times in a row while their bodies were read"
    ):
        door.queue.get(visibility_timeout=1)


@pytest.mark.invariant("I2")
def test_t17_a_look_behind_a_claim_that_slept_hands_out_the_rest(door: Door) -> None:
    """Of two leases of one get, the longer one is still good."""
    door.put_sealed(b"a")
    door.put_sealed(b"b")
    wait_for = door.reader(visibility_s=1)
    first = portal.run(wait_for.get(1))
    second = portal.run(door.reader(visibility_s=60).get(1))
    door.faults.before("read_messages", lambda: door.clock.advance(2))

    read = portal.run(read_in_time(door.lane, [*first, *second]))

    assert [b"b"] == [message.body for message in read]


# --- a proof that has grown too old ---------------------------------------------------------------


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(
    "settings", [{"linger": 60}, {"linger": 5, "repair_timeout": 1}], ids=["long linger", "short"]
)
def test_t12_a_producer_looks_before_repair_may_have_dropped_its_bucket(
    open_door: OpenDoor, settings: dict[str, float]
) -> None:
    """Else it says of a healthy cluster that nobody knows what became of the message."""
    producer, other = open_door(**settings), open_door(**settings)
    producer.queue.put(b"first")
    other.queue.purge()
    rest_s = min(10, settings.get("repair_timeout", 15))
    pass_time(producer, other, seconds=rest_s * 1.2)
    assert 1 == other.client.repair(other.queue.name).queues[0].dropped

    message_id = producer.queue.put(b"second")

    assert [message_id] == [message.message_id for message in other.queue.peek(2)]
