"""What is done to whom, and when: drawn from a seed, the same for the same seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import generator

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

CALM_BEFORE_S: Final = 1.0
"""So long everything runs before the first fault."""

BOOT_S: Final = 10.0
"""About what a node needs to come back; until then no other node is touched."""


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    """SIGKILL, and after ``for_s`` it is started again."""

    PAUSE = "pause"
    """SIGSTOP, and after ``for_s`` SIGCONT."""

    SET_CLOCK = "set_clock"
    """Its wall clock is ``value`` seconds wrong for so long."""

    NODE_CLOCK = "node_clock"
    """All are told by that node that it is ``value`` seconds later than it is, for so long."""

    LOSE_ANSWERS = "lose_answers"
    """``value`` of its CAS are not answered for so long: lost, unheard, or applied later."""

    BUCKETS_AWAY = "buckets_away"
    """``value`` of all buckets have no quorum for so long, for every process; ``targets`` draws."""


_TO_NODES: Final = (Kind.KILL, Kind.PAUSE, Kind.PAUSE, Kind.NODE_CLOCK)
_NODE_CLOCKS_S: Final = (-3_600.0, -60.0, -3.0, 3.0, 60.0, 3_600.0)

NODES: Final = "nodes"
BUCKETS: Final = "buckets"
DRIVER: Final = "driver"
WORKERS: Final = "workers"
REPAIR: Final = "repair"
REPAIR_JOB: Final = "repair_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        at_s: After the storm's begin.
        lane: What takes its faults one after the other: the nodes together, or one process.
        targets: Numbers of nodes; of a worker the number it is chosen by, and of buckets the salt
            they are; empty: the lane's own.
        value: Seconds of a clock, a probability, or a share.
    """

    at_s: float
    lane: str
    kind: Kind
    for_s: float
    targets: tuple[int, ...] = ()
    value: float = 0.0

    def __str__(self) -> str:
        """One line."""
        who = self.lane + "".join(f" {target}" for target in self.targets)
        value = f" {self.value:g}" if self.value else ""
        return f"{self.at_s:6.2f} s  {self.kind}{value} {who} for {self.for_s:.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who is there to be hurt."""

    nodes: int = 3
    producers: int = 2
    consumers: int = 3
    has_spark: bool = True
    has_repair_job: bool = False

    @property
    def children(self) -> tuple[str, ...]:
        """Processes that run Python only, by name."""
        producers = tuple(f"producer{number}" for number in range(self.producers))
        consumers = tuple(f"consumer{number}" for number in range(self.consumers))
        return (*producers, *consumers, REPAIR)

    @property
    def losing(self) -> tuple[str, ...]:
        """Those of them whose CAS are not always answered; and Spark's processes."""
        some = tuple(name for name in self.children if not name.endswith("0"))
        return (*some, DRIVER) if self.has_spark else some


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All faults of one storm, in order of time."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        """As it can be printed beside a red verdict."""
        return "\n".join([f"seed {self.seed}, {self.seconds:g} s", *map(str, self.faults)])

    def lanes(self) -> dict[str, list[Fault]]:
        """Each lane's own faults; dials are lanes of their own: they turn while it is paused."""
        found: dict[str, list[Fault]] = {}
        for fault in self.faults:
            is_dial = fault.kind in (Kind.SET_CLOCK, Kind.LOSE_ANSWERS)
            key = f"{fault.lane}.{fault.kind}" if is_dial else fault.lane
            found.setdefault(key, []).append(fault)
        return found


def draw(seed: int, seconds: float, cast: Cast) -> Schedule:
    """The storm of this seed.

    At most one node is down or paused at a time, but for moments in which two are paused: then
    there is no quorum. Every storm kills a node and pauses one, and has one whose clock is wrong
    while the others are there.
    """
    rng = generator(seed)
    faults = [*_of_nodes(rng, seconds, cast)]
    for name in cast.children:
        faults += _lane(rng, seconds, name, _killed_or_paused, (2.0, 8.0))
    if cast.has_spark:
        faults += _of_driver(rng, seconds)
        faults += _lane(rng, seconds, WORKERS, _worker_killed, (5.0, 12.0))
    if cast.has_repair_job:
        faults += _lane(rng, seconds, REPAIR_JOB, _killed_or_paused, (8.0, 16.0))
    for name in (*cast.children, DRIVER) if cast.has_spark else cast.children:
        faults += _lane(rng, seconds, name, _clock_set, (3.0, 10.0))
    for name in cast.losing:
        faults += _lane(rng, seconds, name, _answers_lost, (2.0, 8.0))
    faults += _lane(rng, seconds, BUCKETS, _buckets_away, (2.0, 8.0))
    ordered = sorted(faults, key=lambda fault: (fault.at_s, fault.lane, fault.kind))
    return Schedule(seed=seed, seconds=seconds, faults=tuple(ordered))


def _of_nodes(rng: random.Random, seconds: float, cast: Cast) -> Iterator[Fault]:
    """One after the other; the first three are a kill, a pause and a wrong clock."""
    first = [Kind.KILL, Kind.PAUSE, Kind.NODE_CLOCK]
    rng.shuffle(first)
    at_s = CALM_BEFORE_S + rng.uniform(0.0, 3.0)
    while at_s < seconds or first:
        kind = first.pop() if first else rng.choice(_TO_NODES)
        how_many = 2 if kind is Kind.PAUSE and not first and rng.random() < 0.4 else 1
        targets = tuple(sorted(rng.sample(range(cast.nodes), how_many)))
        for_s = rng.uniform(0.5, 3.0) if how_many > 1 or kind is Kind.KILL else rng.uniform(1, 6)
        ahead_s = rng.choice(_NODE_CLOCKS_S) if kind is Kind.NODE_CLOCK else 0.0
        yield Fault(
            at_s=round(at_s, 2),
            lane=NODES,
            kind=kind,
            for_s=round(for_s, 2),
            targets=targets,
            value=ahead_s,
        )
        at_s += for_s + (BOOT_S if kind is Kind.KILL else 0.0) + rng.uniform(0.5, 4.0)


def _of_driver(rng: random.Random, seconds: float) -> Iterator[Fault]:
    """A start takes half of a short storm: it is killed in the first third, or paused."""
    at_s = round(CALM_BEFORE_S + rng.uniform(0.1, 0.35) * seconds, 2)
    if rng.random() < 0.5:
        yield Fault(at_s=at_s, lane=DRIVER, kind=Kind.KILL, for_s=round(rng.uniform(0, 2), 2))
    else:
        for_s = round(rng.uniform(1.0, 6.0), 2)
        yield Fault(at_s=at_s, lane=DRIVER, kind=Kind.PAUSE, for_s=for_s)


def _lane(
    rng: random.Random,
    seconds: float,
    lane: str,
    make: Callable[[random.Random, float, str], Fault],
    pause_s: tuple[float, float],
) -> Iterator[Fault]:
    at_s = CALM_BEFORE_S + rng.uniform(0.0, pause_s[1])
    while at_s < seconds:
        fault = make(rng, round(at_s, 2), lane)
        yield fault
        at_s += fault.for_s + rng.uniform(*pause_s)


def _killed_or_paused(rng: random.Random, at_s: float, lane: str) -> Fault:
    if rng.random() < 0.6:
        kind, for_s = Kind.KILL, rng.uniform(0.0, 1.0)
    else:
        kind, for_s = Kind.PAUSE, rng.uniform(0.3, 4.0)
    return Fault(at_s=at_s, lane=lane, kind=kind, for_s=round(for_s, 2))


def _worker_killed(rng: random.Random, at_s: float, lane: str) -> Fault:
    return Fault(at_s=at_s, lane=lane, kind=Kind.KILL, for_s=0.0, targets=(rng.randrange(1 << 16),))


def _clock_set(rng: random.Random, at_s: float, lane: str) -> Fault:
    ahead_s = rng.choice((-600.0, -30.0, -0.5, 0.5, 30.0, 600.0))
    for_s = round(rng.uniform(1.0, 6.0), 2)
    return Fault(at_s=at_s, lane=lane, kind=Kind.SET_CLOCK, for_s=for_s, value=ahead_s)


def _answers_lost(rng: random.Random, at_s: float, lane: str) -> Fault:
    rate = rng.choice((0.05, 0.2, 0.5))
    for_s = round(rng.uniform(1.0, 5.0), 2)
    return Fault(at_s=at_s, lane=lane, kind=Kind.LOSE_ANSWERS, for_s=for_s, value=rate)


def _buckets_away(rng: random.Random, at_s: float, lane: str) -> Fault:
    """Longer than some leases of a storm last."""
    share = rng.choice((0.1, 0.3, 0.6))
    for_s = round(rng.uniform(1.0, 6.0), 2)
    salt = (rng.randrange(1 << 16),)
    return Fault(
        at_s=at_s, lane=lane, kind=Kind.BUCKETS_AWAY, for_s=for_s, targets=salt, value=share
    )
