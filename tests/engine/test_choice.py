"""Programs that meet: who has lost a race leaves others alone, and loses nothing by it (ADR 41)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.choice import LATELY_US
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.choice import BY_ID_EVERY, seen
from cassieq_spark.queue.get.claim import give_back
from cassieq_spark.queue.get.open_buckets import ALONE_FOR_S
from cassieq_spark.queue.get.unsealed import SEALS_PER_CALL, SHORT_LINGER_S
from cassieq_spark.queue.settle.settle import settle_bucket
from cassieq_spark.store import portal
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    from cassieq_spark.queue.get.reader import Reader
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = pytest.mark.usefixtures("still_time")

EACH = 2
"""Messages of a bucket."""


def fill(door: Door, buckets: int) -> None:
    """Open buckets of two messages each, all of which this reader's next get sees first."""
    for _ in range(buckets):
        bucket = door.reserve()
        door.write(bucket, 0, *(b"%d.%d" % (bucket, number) for number in range(EACH)))


def buckets_of(reader: Reader, messages: int) -> list[int]:
    """The buckets of so many messages, by one get."""
    return [
        one.bucket for one in portal.run(reader.get(messages)) for _ in range(one.lease.runs.count)
    ]


def begin_seal(door: Door, bucket: int) -> None:
    """Its first half: what a sealer leaves that dies in between."""
    row = rules.sealing(now_us=door.lane.clock.now_us())
    portal.run(door.lane.buckets.insert(BucketNo(bucket), row))


@dataclass(slots=True)
class Met:
    """Two clients, of which one has lost bucket 0 to the other, and taken all of another one.

    Attributes:
        left: The two buckets that are still open.
    """

    slow: Door
    quick: Door
    reader: Reader
    left: tuple[int, int]


def meet(open_door: OpenDoor, *, linger_s: float | None = None) -> Met:
    settings = {} if linger_s is None else {"linger": linger_s}
    slow, quick = open_door(**settings), open_door(**settings)
    fill(slow, 4)
    reader = slow.reader()
    slow.faults.before("insert_bucket", lambda: portal.run(quick.reader().get(EACH)))
    (taken, *_) = buckets_of(reader, EACH)
    slow.clock.advance(0.1)
    first, second = sorted({1, 2, 3} - {taken})
    return Met(slow, quick, reader, (first, second))


def be_at_work(met: Met) -> None:
    """The quick one takes the first message of the next open bucket."""
    assert [met.left[0]] == buckets_of(met.quick.reader(), 1)


# --- seals ----------------------------------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_p28_who_lost_a_seal_goes_to_another_bucket(open_door: OpenDoor) -> None:
    slow, quick = open_door(), open_door()
    fill(slow, 2)
    slow.faults.before("insert_bucket", lambda: portal.run(quick.reader().get(1)))
    got: list[int] = []
    spent = cost(slow, lambda: got.extend(buckets_of(slow.reader(), 1)))
    assert [1] == got
    assert (2, 0) == (spent["insert_bucket"], spent["update_bucket"])


def test_who_lost_the_only_seal_claims_beside_the_other(open_door: OpenDoor) -> None:
    slow, quick = open_door(), open_door()
    fill(slow, 1)
    slow.faults.before("insert_bucket", lambda: portal.run(quick.reader().get(1)))
    assert [0] == buckets_of(slow.reader(), 1)


def test_a_bucket_that_somebody_has_sealed_for_nothing_is_read_in_its_turn(
    open_door: OpenDoor,
) -> None:
    """Repair and producers seal, too: with one consumer, messages come in the order of ids."""
    slow, other = open_door(), open_door()
    fill(slow, 2)
    slow.faults.before("insert_bucket", lambda: portal.run(seal.close(other.lane, BucketNo(0))))
    assert [0, 0, 1] == buckets_of(slow.reader(), 3)


def test_who_takes_a_message_back_is_no_rival(open_door: OpenDoor) -> None:
    """A cancel changes a row before the claim of the only consumer, which goes on by id."""
    consumer, producer = open_door(), open_door()
    ids = [str(one) for one in producer.queue.put_many([b"m"] * 60)]
    assert [0] == buckets_of(consumer.reader(), 1)
    reader = consumer.reader()
    consumer.faults.before("update_bucket", lambda: producer.queue.cancel(ids[5]))
    seen: list[int] = []
    while found := buckets_of(reader, 5):
        seen += found
    assert (58, sorted(seen)) == (len(seen), seen)


def test_sparks_readers_keep_the_order_of_ids(open_door: OpenDoor) -> None:
    slow, quick = open_door(), open_door()
    fill(slow, 3)
    slow.faults.before("insert_bucket", lambda: portal.run(quick.reader(run=new_uuid()).get(1)))
    assert [0, 1, 1, 2] == buckets_of(slow.reader(run=new_uuid()), 4)


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("age_s", [0.0, 1.5 * ALONE_FOR_S])
def test_p28_a_rival_is_left_alone_with_a_seal_until_it_may_be_dead(
    open_door: OpenDoor, age_s: float
) -> None:
    met = meet(open_door)
    begun, open_ = met.left
    begin_seal(met.slow, begun)
    met.slow.clock.advance(age_s)
    expected = begun if age_s else open_
    assert [expected] == buckets_of(met.reader, 1)


@pytest.mark.invariant("I10")
def test_p28_a_seal_that_was_begun_just_now_is_left_to_a_rival(open_door: OpenDoor) -> None:
    met = meet(open_door)
    met.slow.faults.before(
        "insert_bucket", lambda: [begin_seal(met.quick, bucket) for bucket in met.left]
    )
    got: list[int] = []
    # Both are begun: the second is helped with, since a get never says "none" of what is there.
    spent = cost(met.slow, lambda: got.extend(buckets_of(met.reader, 1)))
    assert 1 == len(got)
    assert (2, 1) == (spent["insert_bucket"], spent["scan_messages"])


@pytest.mark.invariant("I10")
def test_more_seals_begun_than_one_call_ends_are_no_obstacle(open_door: OpenDoor) -> None:
    met = meet(open_door)
    fill(met.slow, SEALS_PER_CALL)
    begun = [*met.left, *range(4, 4 + SEALS_PER_CALL)]
    for bucket in begun:
        begin_seal(met.quick, bucket)
    got: list[int] = []
    spent = cost(met.slow, lambda: got.extend(buckets_of(met.reader, 1)))
    (found,) = got
    assert found in begun
    # The first is helped with: what is refused to all of them would help nobody.
    assert 1 == spent["insert_bucket"]


# --- sealed buckets -------------------------------------------------------------------------------


def test_p28_with_a_rival_open_buckets_come_before_those_it_is_at_work_in(
    open_door: OpenDoor,
) -> None:
    met = meet(open_door)
    _, open_ = met.left
    be_at_work(met)
    assert [open_] == buckets_of(met.reader, 1)


@pytest.mark.parametrize("rest_s", [5.0, 1.5e-6 * LATELY_US])
def test_p28_a_bucket_is_anothers_for_a_time_after_its_last_claim_there(
    open_door: OpenDoor, rest_s: float
) -> None:
    met = meet(open_door)
    theirs, open_ = met.left
    be_at_work(met)
    met.slow.clock.advance(rest_s)
    met.reader._choice.note_lost(theirs)  # it meets others there again and again
    expected = theirs if rest_s > 1e-6 * LATELY_US else open_
    assert [expected] == buckets_of(met.reader, 1)


@pytest.mark.invariant("I9")
def test_what_is_anothers_is_read_again_only_if_nothing_else_is_there(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = meet(open_door)
    be_at_work(met)
    fill(met.slow, 3 * SEALS_PER_CALL)
    met.reader._choice._count = 0  # none of these gets goes by id
    scanner, read = met.reader._scanner, []
    window = scanner._window

    def noted(*asked: Any) -> tuple[list[BucketNo], int]:
        buckets, at = window(*asked)
        read.extend(buckets)
        return buckets, at

    monkeypatch.setattr(scanner, "_window", noted)
    for _ in range(3):
        met.reader._choice.mine = []  # it has to look
        assert EACH == len(buckets_of(met.reader, EACH))
    # A hint may have led there before.
    assert read.count(met.left[0]) <= 1 < read.count(23)


@pytest.mark.invariant("I10")
def test_what_is_anothers_and_does_not_answer_is_passed_over(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = meet(open_door)
    theirs, open_ = met.left
    be_at_work(met)
    met.reader._choice._count = 0  # none of these gets goes by id
    scanner, read = met.reader._scanner, []
    scanner._others_until[BucketNo(theirs)] = met.slow.clock.now_us() + LATELY_US
    scanner.pass_over(BucketNo(theirs), StoreTimeout("it is silent"))
    then = scanner._read
    monkeypatch.setattr(
        scanner, "_read", lambda buckets: read.extend(buckets := list(buckets)) or then(buckets)
    )
    assert [open_, open_] == buckets_of(met.reader, EACH + 1)
    assert theirs not in read
    assert theirs in scanner.passed_over


@pytest.mark.invariant("I10")
def test_what_rivals_are_at_work_in_is_got_if_nothing_else_is_there(open_door: OpenDoor) -> None:
    met = meet(open_door)
    theirs, open_ = met.left
    be_at_work(met)
    assert [open_, open_, theirs] == buckets_of(met.reader, 3)
    assert [] == portal.run(met.reader.get(1))


def test_a_reader_does_not_wait_long_for_young_buckets_if_a_rival_has_messages(
    open_door: OpenDoor,
) -> None:
    linger_s = 4 * SHORT_LINGER_S
    met = meet(open_door, linger_s=linger_s)
    be_at_work(met)
    theirs, _ = met.left
    assert EACH == len(buckets_of(met.reader, EACH))  # the last open one
    fill(met.slow, 1)
    began = met.slow.clock.monotonic()
    assert [theirs] == buckets_of(met.reader, 1)
    assert met.slow.clock.monotonic() - began < linger_s


def test_without_lost_races_a_lane_is_read_by_id_again(open_door: OpenDoor) -> None:
    met = meet(open_door)
    theirs, _ = met.left
    for door in (met.slow, met.quick):
        door.clock.advance(LATELY_US / 1e6)
    be_at_work(met)
    assert [theirs] == buckets_of(met.reader, 1)


def meet_in_a_large_one(open_door: OpenDoor) -> tuple[Door, Door, Reader]:
    """As `meet`, but bucket 0 has many messages, and many others have two."""
    settings = {"bucket_size": 1_000, "linger": 0.0}
    slow, quick = open_door(**settings), open_door(**settings)
    slow.write(slow.reserve(), 0, *[b"m"] * (2 * BY_ID_EVERY))
    fill(slow, BY_ID_EVERY)
    reader = slow.reader()
    slow.faults.before("insert_bucket", lambda: portal.run(quick.reader().get(1)))
    assert 0 not in buckets_of(reader, 1)
    return slow, quick, reader


@pytest.mark.invariant("I10")
def test_p28_a_bucket_whose_holder_only_extends_is_free(open_door: OpenDoor) -> None:
    """It changes the row again and again, and claims nothing of what else is there."""
    slow, quick, reader = meet_in_a_large_one(open_door)
    (held,) = portal.run(quick.reader(visibility_s=90).get(1))
    extension = {held.lease.lease_id: {Extend(visibility_us=90_000_000): held.lease.runs}}
    for is_theirs in (True, False):
        portal.run(settle_bucket(quick.lane, held.bucket, extension))
        row = slow.row(0)
        assert row is not None
        chooser = reader._choice.chooser
        assert is_theirs is chooser.is_others(BucketNo(0), seen(row), row.value.changed_us)
        for door in (slow, quick):
            door.clock.advance(1.5e-6 * LATELY_US)


@pytest.mark.invariant("I10")
def test_p28_one_get_in_so_many_goes_by_id_whoever_is_at_work_there(open_door: OpenDoor) -> None:
    _, quick, reader = meet_in_a_large_one(open_door)
    got: list[int] = []
    for _ in range(BY_ID_EVERY - 1):
        assert [0] == buckets_of(quick.reader(), 1)
        got += buckets_of(reader, 1)
    assert ([], [0]) == ([bucket for bucket in got[:-1] if not bucket], got[-1:])


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("place", ["the same bucket", "another one", "an open one"])
def test_p28_a_get_by_id_takes_what_is_fresh_before_what_always_returns(
    door: Door, place: str
) -> None:
    door.put_batch(0, b"returns", *[b"waits"] * (place == "the same bucket"))
    if place == "another one":
        door.put_batch(1, b"waits")
    elif place == "an open one":
        door.write(door.reserve(), 0, b"waits")
    door.clock.advance(1.0)
    reader, bodies = door.reader(), []
    for _ in range(BY_ID_EVERY):
        claimed = portal.run(reader.get(1))
        bodies += door.bodies(claimed)
        portal.run(give_back(claimed))
    assert [b"returns"] * (BY_ID_EVERY - 1) + [b"waits"] == bodies


@pytest.mark.invariant("I10")
def test_p28_a_get_by_id_seals_what_is_open_below_the_first_sealed_bucket(
    open_door: OpenDoor,
) -> None:
    door = open_door(linger=0.0)
    door.write(door.reserve(), 0, b"old")
    for batch_id in range(BY_ID_EVERY):
        door.put_batch(batch_id, *[b"new"] * EACH)
    reader = door.reader()
    got = [bucket for _ in range(BY_ID_EVERY) for bucket in buckets_of(reader, 1)]
    assert ([], [0]) == ([bucket for bucket in got[:-1] if not bucket], got[-1:])


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_programs_that_begin_together_get_each_message_once(open_door: OpenDoor) -> None:
    doors = [open_door() for _ in range(6)]
    fill(doors[0], 12)
    found: list[list[tuple[int, int]]] = [[] for _ in doors]
    barrier = threading.Barrier(len(doors))

    def drain(at: int) -> None:
        reader = doors[at].reader()
        barrier.wait()
        while claimed := portal.run(reader.get(1)):
            (one,) = claimed
            found[at] += [(one.bucket, offset) for offset in one.lease.runs.offsets()]

    threads = [threading.Thread(target=partial(drain, at)) for at in range(len(doors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [(bucket, offset) for bucket in range(12) for offset in range(EACH)]
    assert everything == sorted(chain.from_iterable(found))
