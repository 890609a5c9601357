"""A fresh message is tried within X (docs/design/choice.md): consumers in a world of made-up time.

They choose by the production rules, from rows that the production rules change. A claim takes as
long as a CAS does, and is refused if the row has changed meanwhile.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import generator, system
from cassieq_spark.model import lease as leases
from cassieq_spark.model.choice import Chooser, Seen, has_fresh, is_lost
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.lease import Terms, claimable
from cassieq_spark.model.row_limits import PREFERRED_LEASES
from cassieq_spark.queue.get import choice
from cassieq_spark.queue.get.choice import BY_ID_AFTER_S, BY_ID_EVERY, Choice
from cassieq_spark.testing import ManualClock
from tests.fixtures.rows import sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket

    Steps = Generator[float, None, None]
    """What somebody does: how long each step takes."""

CAS_S = 0.006
LOOK_S = 0.002
WINDOW = 8
TRIES = 4
SECONDS = 15.0


@dataclass(slots=True, kw_only=True)
class Waits:
    """How long a bucket with fresh messages was tried by nobody.

    Attributes:
        since: When it was tried last, or was there.
        steps: Fresh messages by claims, and buckets, up to it, as they were then.
    """

    since: float
    steps: float


class World:
    """One lane, and all who work there."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.draw = generator(seed)
        self.rows: dict[BucketNo, SimpleNamespace] = {}
        self.longest: dict[BucketNo, list[tuple[float, float]]] = defaultdict(list)
        self.gaps_s: list[float] = []
        self._waits: dict[BucketNo, Waits] = {}
        self._todo: list[tuple[float, int, Steps]] = []
        self._number = 0

    def add(self, messages: int) -> BucketNo:
        bucket = BucketNo(len(self.rows))
        fresh = Runs.span(0, messages - 1)
        row = sealed(manifest=fresh, fresh=fresh, changed_us=0)
        self.rows[bucket] = SimpleNamespace(value=row, version=SimpleNamespace(last_client=None))
        self._waits[bucket] = self._wait(bucket, 100)
        return bucket

    def begin(self, steps: Steps, *, at: float = 0.0) -> None:
        self._number += 1
        heapq.heappush(self._todo, (at, self._number, steps))

    def run(self, seconds: float) -> None:
        while self._todo and self._todo[0][0] < seconds:
            at, _, steps = heapq.heappop(self._todo)
            self.clock.advance(max(0.0, at - self.clock.monotonic()))
            for took_s in steps:
                self.begin(steps, at=self.clock.monotonic() + took_s)
                break
        for bucket in self.rows:
            self.tried(bucket, 100)

    def tried(self, bucket: BucketNo, want: int) -> None:
        """Somebody sends a claim for it, of more than what has come back there."""
        waited = self._waits[bucket]
        if has_fresh(self.rows[bucket].value, self.clock.now_us()):
            lasted_s = self.clock.monotonic() - waited.since
            self.longest[bucket].append((lasted_s, waited.steps))
        self._waits[bucket] = self._wait(bucket, want)

    def _wait(self, bucket: BucketNo, want: int) -> Waits:
        now_us = self.clock.now_us()
        upto = [row.value for at, row in self.rows.items() if at <= bucket]
        fresh = [row.fresh.count for row in upto if has_fresh(row, now_us)]
        return Waits(since=self.clock.monotonic(), steps=sum(fresh) / want + len(fresh))

    def change(self, bucket: BucketNo, row: Bucket, client: UUID) -> None:
        version = SimpleNamespace(last_client=client)
        self.rows[bucket] = SimpleNamespace(value=row, version=version)

    # --- who works there -----------------------------------------------------------------------

    def choice(self, client: UUID) -> Choice:
        session = SimpleNamespace(client_id=client)
        store = SimpleNamespace(session=session, entropy=system)
        lane: Any = SimpleNamespace(clock=self.clock, store=store, max_deliveries=None)
        return Choice(lane)  # with what a choice needs of a lane

    def get(self, chooses: Choice, client: UUID, want: int, got: list[Any]) -> Steps:
        """As `Reader`: a look, then claims until one is applied."""
        chooses.begin()
        yield LOOK_S
        rows = self._look(chooses.chooser, want)
        ours, theirs = chooses.split(rows)
        order = [*chooses.in_order(ours), *chooses.in_order(theirs)]
        for bucket in order[:TRIES]:
            before = self.rows[bucket]
            now_us = self.clock.now_us()
            back = claimable(before.value, now_us=now_us) - before.value.fresh.count
            if chooses.is_by_id or want > back:
                self.tried(bucket, want)
            yield CAS_S
            now = self.rows[bucket]
            if now is not before:
                if is_lost(now.value, before.value):
                    chooses.note_lost(bucket)
                continue
            terms = Terms(
                at_most=want,
                owner=str(client),
                run=None,
                now_us=now_us,
                until_us=now_us + 30_000_000,
                fresh_first=chooses.is_by_id,
            )
            row, found = leases.claim(before.value, terms, partial(system.uuid_at, now_us))
            if found:
                self.change(bucket, row, client)
                chooses.mine = [bucket]
                got += [(bucket, one.lease_id) for one in found]
                return

    def _look(self, chooser: Any, want: int) -> dict[BucketNo, Any]:
        found: dict[BucketNo, Any] = {}
        available, behind = 0, 0
        now_us = self.clock.now_us()
        for bucket, row in self.rows.items():
            there = claimable(row.value, now_us=now_us)
            if not there:
                continue
            found[bucket] = row
            is_theirs = chooser.is_others(bucket, choice.seen(row), now_us)
            available += 0 if is_theirs else there
            behind += 1
            if available >= want or behind > 3 * WINDOW:
                break
        return found

    def consumer(
        self, want: int, work_s: float, *, gets: float = math.inf, dies: bool = False
    ) -> Steps:
        """Gets, works, acks, and begins again; or dies with what it has got."""
        client = system.uuid_at(self._number)
        chooses = self.choice(client)
        began: float | None = None
        while gets > 0:
            gets -= 1
            if began is not None:
                self.gaps_s.append(self.clock.monotonic() - began)
            began = self.clock.monotonic()
            got: list[Any] = []
            yield from self.get(chooses, client, want, got)
            if dies:
                return
            yield work_s if got else 0.01
            for bucket, lease_id in got:
                yield from self._settled(bucket, client, lease_id)

    def _settled(self, bucket: BucketNo, client: UUID, lease_id: UUID) -> Steps:
        while True:
            before = self.rows[bucket]
            yield CAS_S
            if self.rows[bucket] is before:
                now_us = self.clock.now_us()
                self.change(
                    bucket, leases.ack(before.value, {lease_id: None}, now_us=now_us), client
                )
                return

    def extender(self, bucket: BucketNo, each_s: float) -> Steps:
        """Holds one message, and extends it without end."""
        client = system.uuid_at(self._number)
        lease_id = system.uuid_at(self.clock.now_us())
        terms = Terms(
            at_most=1, owner="e", run=None, now_us=self.clock.now_us(),
            until_us=self.clock.now_us() + 30_000_000,
        )  # fmt: skip
        row, _ = leases.claim(self.rows[bucket].value, terms, lambda: lease_id)
        self.change(bucket, row, client)
        while True:
            yield each_s
            now_us = self.clock.now_us()
            row = leases.extend(
                self.rows[bucket].value,
                {lease_id: None},
                until_us=now_us + 30_000_000,
                now_us=now_us,
            )
            self.change(bucket, row, client)

    def returner(self, bucket: BucketNo) -> Steps:
        """One message of this bucket is always back: somebody takes it and releases it."""
        while True:
            row = self.rows[bucket].value
            for one in row.leases:
                released = leases.release(
                    row, {one.lease_id: None}, count_delivery=False, due_us=None, now_us=0
                )
                self.change(bucket, released, system.uuid_at(7))
                row = released
            yield 0.001

    def producer(self, messages: int, each_s: float) -> Steps:
        """An endless backlog."""
        while True:
            self.add(messages)
            yield each_s


def within_x(world: World) -> Iterator[tuple[BucketNo, float, float]]:
    """The buckets that were tried by nobody for longer than X, how long, and X."""
    c = max(world.gaps_s, default=0.0)
    each_s = min(BY_ID_EVERY * c, BY_ID_AFTER_S) + c
    for bucket, waited in world.longest.items():
        for lasted_s, steps in waited:
            if lasted_s > each_s * steps:
                yield bucket, lasted_s, each_s * steps


def extended(world: World) -> None:
    """The oldest bucket has a holder that only extends, as fast as a CAS is: all others lose."""
    bucket = world.add(100)
    world.begin(world.extender(bucket, CAS_S / 2))
    workers(world, 100)


def held_by_the_dead(world: World) -> None:
    """Consumers come, take what they can, and die."""
    world.add(1_000)
    for at in range(20):
        world.begin(world.consumer(40, 0.0, dies=True), at=at / 2)
    workers(world, 100)


def others_are_faster(world: World) -> None:
    """Two programs take one message at a time from the oldest bucket, without end."""
    world.add(5_000)
    for _ in range(2):
        world.begin(world.consumer(1, 0.0))
    workers(world, 100)


def always_back(world: World) -> None:
    """What came back goes out first, and comes back at once; one message was never delivered."""
    world.begin(world.returner(came_back(world, 10)))
    workers(world, 1)


def crowded(world: World) -> None:
    """Long jobs have leased so many messages one by one that all prefer another bucket."""
    bucket = world.add(PREFERRED_LEASES + 10)
    for _ in range(PREFERRED_LEASES):
        world.begin(world.extender(bucket, 5.0))
    world.begin(world.consumer(100, 0.02), at=0.1)


def got_once(world: World) -> None:
    """Each client gets once, and ends."""
    world.begin(world.returner(came_back(world, 1)))
    for at in range(2_000):
        world.begin(world.consumer(1, 0.0, gets=1), at=at / 100)


def came_back(world: World, messages: int) -> BucketNo:
    """A bucket with so many messages that came back, and one that is fresh."""
    bucket = world.add(messages + 1)
    terms = Terms(at_most=messages, owner="o", run=None, now_us=world.clock.now_us(), until_us=0)
    row, _ = leases.claim(world.rows[bucket].value, terms, partial(system.uuid_at, 0))
    world.change(bucket, row, system.uuid_at(0))
    return bucket


def workers(world: World, want: int) -> None:
    """Three that stay, one that takes single messages, and a slow one that comes later."""
    for at in range(3):
        world.begin(world.consumer(want, 0.02), at=0.1 + at / 100)
    world.begin(world.consumer(1, 0.0), at=0.2)
    world.begin(world.consumer(want, 0.1), at=2.0)


AROUND = [extended, held_by_the_dead, others_are_faster, always_back, crowded]


def world_of(around: Callable[[World], None]) -> World:
    """All that happens in some seconds beside an endless backlog."""
    world = World()
    around(world)
    for _ in range(20):
        world.add(100)
    world.begin(world.producer(100, 0.05))
    world.run(SECONDS)
    return world


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("around", AROUND)
def test_p28_a_fresh_message_is_tried_within_x(around: Callable[[World], None]) -> None:
    world = world_of(around)
    assert world.longest
    assert [] == list(within_x(world))


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("around", [always_back, crowded])
def test_without_gets_by_id_it_is_not(
    around: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "BY_ID_EVERY", math.inf)
    monkeypatch.setattr(choice, "BY_ID_AFTER_S", math.inf)
    assert 0 in {bucket for bucket, _, _ in within_x(world_of(around))}


def test_p28_of_gets_that_are_far_apart_every_other_one_goes_by_id() -> None:
    """Each comes later than one by id is due, and one by id leaves alone what came back."""
    world = World()
    chooses = world.choice(system.uuid_at(1))
    found = []
    for _ in range(6):
        world.clock.advance(BY_ID_AFTER_S)
        chooses.begin()
        found.append(chooses.is_by_id)
    assert [True, False] * 3 == found


@pytest.mark.parametrize("has_met", [False, True])
def test_p28_free_buckets_are_tried_in_an_order_of_each_get_once_clients_have_met(
    has_met: bool,
) -> None:
    fresh = Runs.span(0, 9)
    seen = Seen(sealed(manifest=fresh, fresh=fresh, changed_us=0), changed_by=None)
    orders = set()
    for draw in range(20):
        chooser = Chooser(client=system.uuid_at(1), has_met=has_met, draw=draw)
        order = sorted(map(BucketNo, range(8)), key=lambda at: chooser.order(at, seen, 10**9))
        orders.add(tuple(order))
    assert has_met is (len(orders) > 10)
    assert {tuple(range(8))} == {tuple(sorted(one)) for one in orders}


@pytest.mark.invariant("I10")
def test_clients_that_get_once_try_it_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in so many of them goes by id, as each begins to count somewhere."""
    draw = generator(1)
    monkeypatch.setattr(choice, "first_count", lambda _: draw.randrange(BY_ID_EVERY))
    world = World()
    got_once(world)
    world.run(SECONDS)
    assert not world.rows[BucketNo(0)].value.fresh
