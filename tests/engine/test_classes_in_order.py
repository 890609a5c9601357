"""For any lanes, a lower class has no more than its offer before a higher one.

The rule is in docs/design/lanes.md.

What a get finds in a lane depends on what its reader has seen there before: open buckets are young
at first. So the rule is held for the first get of a consumer and for later ones, whatever is open,
sealed, half sealed, empty or drained in each class, shard and due lane.

The clock goes on with each look at it and each pause, and not by itself: a slow machine changes
nothing. What a get draws at random (which class it offers a part to) is drawn from the world's own
seed: a world that has failed fails again.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from cassieq_spark.entropy import Entropy, generator, new_uuid
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, Runs
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.model.lease import claimable
from cassieq_spark.model.moments import time_of
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.claim import Claimer, Holder, give_back, mean_bytes
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.put import producer
from cassieq_spark.queue.put.encode import Packed
from cassieq_spark.queue.put.results import Placed
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store import portal
from cassieq_spark.testing import ManualClock
from tests.fixtures.queues import Door, by_priority, door_of, payload

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from cassieq_spark.queue.get.claim import Claimed, Holder
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import OpenDoor

DAY_S = 86_400
LEASE_US = 3_600_000_000
BUCKET_SIZE = 40
PASSED_OVER = {"bucket_unreachable", "lane_passed_over"}
KINDS = ("open", "sealed", "half", "empty", "drained", "returned")
NINE = 9
"""More open buckets than a reader seals in one round."""

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""To shrink a world takes minutes, and it is read as easily as it is."""

Buckets = list[tuple[str, int, int]]
"""(kind, messages in each, how many buckets)"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is put, how much time passes, and then a get.

    Attributes:
        puts: Buckets for lanes, by class and shard.
        at_most_bytes: None: it is limited by count.
    """

    puts: dict[tuple[int, int], Buckets]
    pause_s: float
    at_most: int
    at_most_bytes: int | None
    is_acked: bool


@dataclass(frozen=True, kw_only=True)
class World:
    """A queue and what happens to it.

    Attributes:
        is_program: Whether the consumer is a program, or else a query of Spark.
        due: For some classes, how many messages were scheduled, and whether they are sealed.
        sizes: The size of a message of each class.
        seed: Of all that gets draw at random.
    """

    priorities: int
    shards: int
    fairness: float
    linger_s: float
    tick_us: int
    is_program: bool
    due: dict[int, tuple[int, bool]]
    sizes: list[int]
    steps: list[Step]
    seed: int


def steps(priorities: int, shards: int, most: int) -> SearchStrategy[Step]:
    counts, times = st.sampled_from([1, 3, 12, BUCKET_SIZE]), st.sampled_from([1, 1, 1, NINE])
    bucket = st.tuples(st.sampled_from(KINDS), counts, times)
    lanes = [(priority, shard) for priority in range(priorities) for shard in range(shards)]
    some = st.lists(bucket, max_size=most)
    return st.builds(
        Step,
        puts=st.fixed_dictionaries(dict.fromkeys(lanes, some)),
        pause_s=st.sampled_from([0, 0.005, 3]),
        at_most=st.sampled_from([1, 7, 30, 200]),
        at_most_bytes=st.sampled_from([None, None, 2_000, 20_000]),
        is_acked=st.booleans(),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    priorities, shards = draw(st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2)]))
    later = steps(priorities, shards, 1)
    scheduled = st.tuples(st.sampled_from([1, 12, BUCKET_SIZE]), st.booleans())
    return World(
        priorities=priorities,
        shards=shards,
        fairness=draw(st.sampled_from([0, 0.1, 0.3])),
        linger_s=draw(st.sampled_from([0, 0.02, 0.1])),
        tick_us=draw(st.sampled_from([0, 300])),
        is_program=draw(st.booleans()),
        due=draw(st.dictionaries(st.integers(0, priorities - 1), scheduled, max_size=2)),
        sizes=draw(st.lists(st.sampled_from([40, 900]), min_size=3, max_size=3)),
        steps=[
            draw(steps(priorities, shards, 3)),
            *draw(st.lists(later, min_size=1, max_size=2)),
        ],
        seed=draw(st.integers(0, 1_000)),
    )


class Ticking(ManualClock):
    """Each look at it takes a moment."""

    def __init__(self, tick_us: int, *, start_us: int) -> None:
        super().__init__(start_us=start_us)
        self._tick_s = tick_us / 1e6

    def monotonic(self) -> float:
        self.advance(self._tick_s)
        return super().monotonic()

    def wait(self, seconds: float) -> None:
        """Not for less than asked for, whatever is rounded: who waits again would wait for ever."""
        super().wait(seconds + 1e-6)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + 1e-6)


@dataclass
class Run:
    """A world on the real node."""

    world: World
    door: Door
    caplog: pytest.LogCaptureFixture
    random: Any = field(default_factory=lambda: generator(1))
    due: dict[int, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        due_us = self.door.clock.now_us() + DAY_S * 1_000_000
        for priority, (count, is_sealed) in self.world.due.items():
            self.schedule(priority, due_us, count, is_sealed=is_sealed)
        if self.due:
            self.door.clock.advance(DAY_S + 60)
        run = None if self.world.is_program else new_uuid()
        holder = Holder(owner="test", run=run, visibility_us=LEASE_US)
        self.readers = QueueReader(self.door.lane, holder)

    def schedule(self, priority: int, due_us: int, count: int, *, is_sealed: bool) -> None:
        bodies = [self.random.randbytes(self.world.sizes[priority]) for _ in range(count)]
        self.door.queue.put_many(bodies, priority=priority, due_at=time_of(due_us))
        lane = self.door.lane.due_lane(
            DueLane(due_us // self.door.lane.settings.period_us, priority)
        )
        self.due[priority] = lane
        if is_sealed:
            assert portal.run(seal.close(lane, BucketNo(0))) is not None

    def lanes_of(self, priority: int) -> list[Lane]:
        fixed = [one for one in self.door.lane.all if one.priority == priority]
        return [*fixed, *(self.due[at] for at in self.due if at == priority)]

    def fill(self, puts: tuple[tuple[int, int], Buckets]) -> None:
        """Put more buckets into a lane."""
        (priority, shard), buckets = puts
        for kind, count, times in buckets:
            for _ in range(times):
                self.put(priority, shard, kind, count)

    def put(self, priority: int, shard: int, kind: str, count: int) -> None:
        """Put one more bucket into a lane."""
        lane = self.door.lane.sibling(self.door.lane.fixed.lane(priority, shard))
        bucket = BucketNo(portal.run(reserve(lane, 1)).start)
        if kind == "empty":
            return
        size = self.world.sizes[priority]
        bodies = [self.random.randbytes(size) for _ in range(count)]
        packed = Packed(payload=payload(*bodies), message_ids=(None,) * count)
        placed = Placed(lane=lane.lane_id, bucket=bucket, first=0, packed=packed)
        assert portal.run(producer.write(lane, bucket, [placed]))
        kept = portal.run(producer.prove(lane, bucket, is_written=True)).kept
        assert kept is not None
        assert Runs.span(0, count - 1).issubset(kept)
        if kind == "half":
            portal.run(lane.buckets.insert(bucket, rules.sealing(now_us=lane.clock.now_us())))
        elif kind != "open":
            assert portal.run(seal.close(lane, bucket)) is not None
        if kind in {"drained", "returned"}:
            self.leave(lane, bucket, kind)

    def leave(self, lane: Lane, bucket: BucketNo, kind: str) -> None:
        """Others had it, and have acked it or given it back."""
        holder = Holder(owner="other", run=None, visibility_us=LEASE_US)
        other = Claimer(lane=lane, holder=holder)
        row = portal.run(lane.buckets.read(bucket))
        assert row is not None
        claimed, _ = portal.run(other.claim(bucket, row, BUCKET_SIZE))
        if kind == "drained":
            self.door.ack(claimed)
        else:
            portal.run(give_back(claimed))

    def visible(self) -> Counter[int]:
        """Visible messages by class: all time is over that hides any, but for leases."""
        lanes = [one for at in range(self.world.priorities) for one in self.lanes_of(at)]
        found: Counter[int] = Counter()
        for lane, count in zip(
            lanes, portal.run(self.door.session.map(self.visible_in, lanes)), strict=True
        ):
            found[lane.priority] += count
        return found

    async def visible_in(self, lane: Lane) -> int:
        now_us = lane.clock.now_us()
        end = -(-(await lane.read_monoton()).next_id // lane.bucket_size)
        found = 0
        for number in range(end):
            row = await lane.buckets.read(BucketNo(number))
            if row is None or row.value.status is rules.Status.SEALING:
                found += await lane.messages.count(BucketNo(number), now_us=now_us)
            else:
                found += claimable(row.value, now_us=now_us, max_deliveries=lane.max_deliveries)
        return found

    def take(self, step: Step) -> bool:
        """Put, get, and hold the rule; return whether it can be held to it from now on, too."""
        for one in step.puts.items():
            self.fill(one)
        self.door.clock.advance(step.pause_s)
        before = self.visible()
        self.caplog.clear()
        claimed = portal.run(
            self.readers.get(
                step.at_most if step.at_most_bytes is None else ID_LIMIT,
                at_most_bytes=step.at_most_bytes,
            )
        )
        if any(one.event in PASSED_OVER for one in self.caplog.records):
            # What does not answer, on a busy machine, is not waited for, and skipped for 5 s (I10).
            return False
        self.check(step, before, claimed)
        if step.is_acked:
            self.door.ack(claimed)
        return True

    def check(self, step: Step, before: Counter[int], claimed: list[Claimed]) -> None:
        got: Counter[int] = Counter()
        spent: Counter[int] = Counter()
        largest: Counter[int] = Counter()
        for one in claimed:
            priority, each = one.lane.priority, mean_bytes(one.row.value)
            got[priority] += one.lease.runs.count
            spent[priority] += each * one.lease.runs.count
            largest[priority] = max(largest[priority], each)
        assert bool(before.total()) == bool(claimed), (before, got)
        if step.at_most_bytes is None:
            assert got.total() <= step.at_most
            has_room = got.total() < step.at_most
        else:
            has_room = False
        for priority in range(1, self.world.priorities):
            lower = range(priority)
            if step.at_most_bytes is None:
                most = ceil(step.at_most * self.world.fairness)
                is_over = sum(got[at] for at in lower) > most
            else:
                # However large the first message is that the offer finds, it is given.
                offer = step.at_most_bytes * self.world.fairness
                most = offer + max((largest[at] for at in lower if offer), default=0)
                is_over = sum(spent[at] for at in lower) > most
            higher = range(priority, self.world.priorities)
            has_left = any(got[at] < before[at] for at in higher)
            assert not (is_over and has_left), (priority, before, got)
            # Nor does it end before it is full while a lower class has something to give.
            has_lower = any(before[at] for at in lower)
            assert not (has_room and has_lower and has_left), (priority, before, got)


def of_own_time(door: Door) -> Door:
    """Let the door's clock move by its pauses, and a moment with each look at it."""
    door.clock = Ticking(300, start_us=door.clock.now_us())
    door.client._store.clock = door.clock
    return door


def readers_of(door: Door) -> QueueReader:
    return QueueReader(door.lane, Holder(owner="test", run=None, visibility_us=LEASE_US))


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("shards", [1, 3])
def test_the_first_get_of_a_consumer_keeps_the_order_of_classes(
    open_door: OpenDoor, shards: int
) -> None:
    door = of_own_time(open_door(priorities=5, shards=shards, fairness=0.1, bucket_size=1_000))
    for priority in range(5):
        for key in range(6):
            door.queue.put_many([b"m"] * 10, priority=priority, key=str(key))
    readers = readers_of(door)

    got = by_priority(portal.run(readers.get(50)))

    assert (45, 50) == (got[4], got.total())
    assert 15 == by_priority(portal.run(readers.get(50)))[4]


@pytest.mark.invariant("I10")
def test_u15_the_first_get_of_a_consumer_waits_for_what_it_offers(open_door: OpenDoor) -> None:
    """Else a job that gets one batch and ends finds the lower class young, again and again."""
    door = of_own_time(open_door(priorities=2, fairness=0.2, bucket_size=1_000))
    door.queue.put_many([b"low"] * 60)
    door.queue.put_many([b"high"] * 60, priority=1)
    assert portal.run(seal.close(door.lane.all[1], BucketNo(0))) is not None

    assert {1: 40, 0: 10} == by_priority(portal.run(readers_of(door).get(50)))


@pytest.mark.invariant("I10")
def test_a_large_message_of_a_higher_class_is_not_kept_out_by_small_ones(
    open_door: OpenDoor,
) -> None:
    door = of_own_time(open_door(priorities=2, fairness=0.1, linger=0, bucket_size=1_000))
    random = generator(1)
    door.queue.put_many([random.randbytes(50) for _ in range(200)])
    door.queue.put_many([random.randbytes(2_000) for _ in range(3)], priority=1)
    readers = readers_of(door)

    got = [by_priority(portal.run(readers.get(ID_LIMIT, at_most_bytes=1_000))) for _ in range(3)]

    assert [1, 1, 1] == [one[1] for one in got]
    assert all(0 < one[0] <= 4 for one in got)


class Lowest(random.Random):
    """Draws the lowest number each time: the offer is the next lower class's."""

    def random(self) -> float:
        return 0.0


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("is_scheduled", [False, True])
def test_what_an_offer_leaves_comes_before_lower_classes(
    open_door: OpenDoor, *, is_scheduled: bool
) -> None:
    """An offer that is full has sealed a young bucket, and has seen the rest of it only then."""
    door = of_own_time(open_door(priorities=3, fairness=0.1, linger=0.1, bucket_size=1_000))
    later = time_of(door.clock.now_us() + DAY_S * 1_000_000) if is_scheduled else None
    door.queue.put_many([b"middle"] * 12, priority=1, due_at=later)
    door.clock.advance(DAY_S + 60)
    door.queue.put_many([b"low"] * 40)
    door.lane.store.entropy = Entropy(Lowest())

    assert {1: 12, 0: 18} == by_priority(portal.run(readers_of(door).get(30)))


OFFER_OF_ONE_YOUNG_MESSAGE: Final = World(  # 59 places stayed empty
    priorities=3,
    shards=1,
    fairness=0.3,
    linger_s=0.02,
    tick_us=300,
    is_program=False,
    due={0: (1, False), 2: (12, True)},
    sizes=[40, 900, 40],
    steps=[
        Step(
            puts={
                (2, 0): [("returned", 3, 9), ("half", 40, 1), ("half", 40, 1)],
                (1, 0): [("half", 1, 1), ("returned", 40, 1), ("half", 40, 1)],
                (0, 0): [],
            },
            pause_s=0,
            at_most=200,
            at_most_bytes=None,
            is_acked=False,
        )
    ],
    seed=188,
)
NINE_OPEN_BUCKETS: Final = World(  # the look was cut after eight, and the ninth came after class 0
    priorities=2,
    shards=1,
    fairness=0.3,
    linger_s=0.02,
    tick_us=0,
    is_program=True,
    due={1: (40, True), 0: (40, True)},
    sizes=[900, 40, 900],
    steps=[
        Step(
            puts={
                (0, 0): [("returned", 12, 9), ("sealed", 12, 9), ("drained", 40, 1)],
                (1, 0): [("drained", 12, 9), ("drained", 40, 9), ("drained", 12, 9)],
            },
            pause_s=3,
            at_most=7,
            at_most_bytes=None,
            is_acked=False,
        ),
        Step(
            puts={(0, 0): [], (1, 0): [("open", 3, NINE)]},
            pause_s=3,
            at_most=200,
            at_most_bytes=None,
            is_acked=False,
        ),
    ],
    seed=662,
)


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("world", [OFFER_OF_ONE_YOUNG_MESSAGE, NINE_OPEN_BUCKETS])
def test_the_order_of_classes_holds_in_worlds_that_were_found(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture, world: World
) -> None:
    take_all(world, open_door(), caplog)


def take_all(world: World, door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """Play a world in a queue of its own, by the client of a door."""
    of_queue = door_of(
        door.client,
        f"{door.queue.name}.{new_uuid().hex[:8]}",
        priorities=world.priorities,
        shards=world.shards,
        fairness=world.fairness,
        linger=world.linger_s,
        bucket_size=BUCKET_SIZE,
    )
    store = door.client._store
    before = store.clock, store.entropy
    of_queue.clock = Ticking(world.tick_us, start_us=door.clock.now_us())
    store.clock, store.entropy = of_queue.clock, Entropy(generator(world.seed))
    try:
        run = Run(world=world, door=of_queue, caplog=caplog)
        all(map(run.take, world.steps))
    finally:
        store.clock, store.entropy = before


def hold(open_door: OpenDoor, caplog: pytest.LogCaptureFixture, examples: int) -> None:
    """Hold the rule in so many worlds."""
    door = open_door()

    @settings(max_examples=examples, phases=PHASES, suppress_health_check=[*HealthCheck])
    @given(world=worlds())
    def in_any(world: World) -> None:
        note(repr(world))
        take_all(world, door, caplog)

    in_any()


@pytest.mark.invariant("I10")
def test_a_lower_class_has_no_more_than_its_offer_in_a_few_worlds(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    hold(open_door, caplog, 3)


@pytest.mark.long
@pytest.mark.invariant("I10")
def test_a_lower_class_has_no_more_than_its_offer_in_any_world(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    hold(open_door, caplog, 60)
