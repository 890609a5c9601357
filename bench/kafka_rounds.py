"""What is measured of two warm Spark sessions in turns: all legs, first rows, a trickle."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from bench.spark_child import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.spark_child import SparkChild

OURS, THEIRS, SPARK = "cassieq", "kafka", "spark"
SINKS: Final = {"sink_batch": "write", "sink_stream": "write_stream"}
SOURCES: Final = {"source_limit": ("sink_batch", 200_000), "source_all": ("sink_stream", None)}
"""Whose messages a source drains, and how many a batch."""

TRIGGERS: Final = "_triggers"
"""A source's second figure, of the same query: its triggers only."""

TARGETS: Final = {
    "sink_batch": 1.1,
    "sink_stream": 1.1,
    "source_limit": 1.0,
    "source_limit_triggers": 1.3,
    "source_all": 1.0,
    "source_all_triggers": 1.3,
}
"""Our speed against theirs, at least."""

FIRST_ROW, TRICKLE = "first_row", "trickle"
FILES = 10
FEW = 1_000
TRICKLE_TURNS = 5
TRIES: Final = 3
"""How often a round is begun, at most, if the other side's session fails: in one run of ten minutes
Kafka's producer got OUT_OF_ORDER_SEQUENCE_NUMBER for a new topic until it gave up, 120 s later."""


@dataclass(frozen=True, slots=True)
class Case:
    """So many messages of a size, with one durability on each side.

    Attributes:
        ours: ``fsync``: Cassandra's commit log in ``batch``, as we ship it; or ``periodic``.
        theirs: ``default``: Kafka leaves it to the operating system; or ``fsync``.
        is_named: Whether PYSPARK_PYTHON names our side's interpreter.
    """

    messages: int
    body_bytes: int
    ours: str = "fsync"
    theirs: str = "default"
    is_named: bool = False
    legs: tuple[str, ...] = tuple(TARGETS)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int
    warm_up: int
    fresh_sessions: int
    trickle_samples: int
    trickle_warm_up: int


@dataclass(slots=True)
class Samples:
    """Seconds of each leg and side, one a round; batches of the last."""

    seconds: dict[str, dict[str, list[float]]]
    batches: dict[str, dict[str, float]]

    def add(self, leg: str, side: str, took: dict[str, float]) -> None:
        """Of a sink or a source, which has two figures."""
        for name, key in ((leg, "wall"), (leg + TRIGGERS, "triggers")):
            if name in self.seconds:
                self.seconds[name][side].append(took[key])
        if "batches" in took:
            self.batches.setdefault(leg, {})[side] = took["batches"]

    @classmethod
    def none(cls, legs: Sequence[str]) -> Self:
        """Of these legs, nothing yet."""
        return cls({leg: {OURS: [], THEIRS: []} for leg in legs}, {})

    def extend(self, others: Samples) -> None:
        """By those of a round."""
        for leg, sides in others.seconds.items():
            for side, values in sides.items():
                self.seconds[leg][side] += values
        self.batches |= others.batches


class Rounds:
    """All that is measured on two warm sessions.

    Attributes:
        repeated: The rounds that were begun again, because the other side had failed.
    """

    def __init__(
        self,
        children: Mapping[str, SparkChild],
        extent: Extent,
        *,
        folder: Path,
        seed: int,
        repeated: list[str] | None = None,
    ) -> None:
        self._children = children
        self._extent = extent
        self._folder = folder
        self._seed = seed
        self._turns = 0
        self.repeated: list[str] = [] if repeated is None else repeated

    def case(self, name: str, case: Case, legs: Sequence[str]) -> Samples:
        """Every leg in every round, by the one side and by the other.

        A round before them all checks what came out against what went in, by checksums.

        Raises:
            RuntimeError: A count or a checksum is off, or a session failed: ours once, or theirs
                again and again.
        """
        bodies = self._folder / name
        _write_bodies(bodies, case, self._seed)
        loaded = self._each(lambda child: child.do("load", bodies=str(bodies)))
        if loaded[OURS] != loaded[THEIRS] or loaded[OURS]["count"] != case.messages:
            raise RuntimeError(f"{name}: the sides do not have the same messages: {loaded}")
        self._check_sums(name, case, loaded[OURS])
        samples = Samples.none(legs)
        for number in range(1 - self._extent.warm_up, self._extent.rounds):
            found = self._until_done(f"{name}-{number + self._extent.warm_up}", case, legs)
            if number >= 0:
                samples.extend(found)
            print(f"{name}: round {number + 1} of {self._extent.rounds}", file=sys.stderr)
        return samples

    def first_rows(self, start: Callable[[str], SparkChild]) -> dict[str, dict[str, list[float]]]:
        """The first and the second query of a fresh session, on queues with few messages."""
        found: dict[str, dict[str, list[float]]] = {
            key: {OURS: [], THEIRS: []}
            for key in ("first_query", "second_query", "first_wall", "second_wall")
        }
        for number in range(self._extent.fresh_sessions):
            for side in self._in_turn():
                queues = [f"few-{number}-{query}" for query in range(2)]
                for queue in queues:
                    self._create(side, queue, Case(FEW, 96))
                    self._children[side].do("write_few", queue=queue, rows=FEW)
                os.sync()
                with start(side) as child:
                    for order, queue in zip(("first", "second"), queues, strict=True):
                        took = child.do("first_row", queue=queue)
                        found[f"{order}_query"][side].append(took["first_row"])
                        found[f"{order}_wall"][side].append(took["wall"])
            print(f"first rows: session {number + 1}", file=sys.stderr)
        return found

    def trickle(self) -> dict[str, list[float]]:
        """From a put to its row, of both sides and of Spark's own source, in turns."""
        found: dict[str, list[float]] = {OURS: [], THEIRS: [], SPARK: []}
        each = -(-self._extent.trickle_samples // TRICKLE_TURNS)
        for turn in range(TRICKLE_TURNS):
            for side in found:
                queue = f"trickle-{turn}"
                child = self._children[OURS if side == SPARK else side]
                if side != SPARK:
                    self._create(side, queue, Case(0, 96))
                found[side] += child.do(
                    "trickle",
                    queue=queue,
                    samples=each,
                    warm_up=self._extent.trickle_warm_up,
                    seed=self._seed + turn,
                    own=side == SPARK,
                )
            print(f"trickle: turn {turn + 1} of {TRICKLE_TURNS}", file=sys.stderr)
        return found

    def _until_done(self, name: str, case: Case, legs: Sequence[str]) -> Samples:
        tried = 1
        while True:
            try:
                return self._round(f"{name}-try{tried}", case, legs)
            except CommandFailed as error:
                if error.side == OURS or tried == TRIES:
                    raise
                self.repeated.append(name)
                why = error.why.strip().splitlines()[-1]
                print(f"{name} is begun again, as {error.side} failed: {why}", file=sys.stderr)
                tried += 1

    def _round(self, name: str, case: Case, legs: Sequence[str]) -> Samples:
        """The sinks that are measured, and the sources, on queues that are filled for them."""
        samples = Samples.none(legs)
        filled = set()
        for sink, command in SINKS.items():
            if sink in legs:
                filled.add(sink)
                for side in self._in_turn():
                    samples.add(sink, side, self._put(side, f"{sink}-{name}", case, command))
        for source, (sink, limit) in SOURCES.items():
            if not {source, source + TRIGGERS} & set(legs):
                continue
            if sink not in filled:
                for side in self._in_turn():
                    self._put(side, f"{sink}-{name}", case, "write")
            for side in self._in_turn():
                took = self._drain(side, f"{sink}-{name}", case, limit)
                samples.add(source, side, took)
        return samples

    def _put(self, side: str, queue: str, case: Case, command: str) -> dict[str, float]:
        child = self._children[side]
        self._create(side, queue, case)
        # What the side before left to the operating system to write is not this one's to wait for.
        os.sync()
        took: dict[str, float] = child.do(command, queue=queue)
        stored = child.do("stored", queue=queue)
        if stored != case.messages:
            raise RuntimeError(f"{side}, {queue}: {stored} stored instead of {case.messages}")
        return took

    def _drain(self, side: str, queue: str, case: Case, limit: int | None) -> dict[str, float]:
        child = self._children[side]
        os.sync()
        took: dict[str, float] = child.do("drain", queue=queue, limit=limit)
        left = child.do("left", queue=queue)
        if took["rows"] != case.messages or left:
            raise RuntimeError(
                f"{side}, {queue}: {took['rows']} read instead of {case.messages}, {left} are left"
            )
        return took

    def _check_sums(self, name: str, case: Case, expected: dict[str, int]) -> None:
        for (sink, command), (_, limit) in zip(SINKS.items(), SOURCES.values(), strict=True):
            for side in self._in_turn():
                queue = f"{sink}-{name}-0"
                self._put(side, queue, case, command)
                found = self._children[side].do("drain_summed", queue=queue, limit=limit)
                if found != expected:
                    raise RuntimeError(f"{side}, {queue}: {found} came out instead of {expected}")

    def _create(self, side: str, queue: str, case: Case) -> None:
        durability = case.ours if side == OURS else case.theirs
        self._children[side].do("create", queue=queue, durability=durability)

    def _each(self, action: Callable[[SparkChild], Any]) -> dict[str, Any]:
        return {side: action(child) for side, child in self._children.items()}

    def _in_turn(self) -> list[str]:
        """Both sides; who was first is second the next time."""
        self._turns += 1
        sides = [OURS, THEIRS]
        return sides if self._turns % 2 else sides[::-1]


def _write_bodies(folder: Path, case: Case, seed: int) -> None:
    """Random bodies in Parquet files, which both sides read."""
    import pyarrow as pa  # noqa: PLC0415 - for a run only
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    from bench.raw import Shape  # noqa: PLC0415 - as above

    folder.mkdir()
    shape = Shape(case.body_bytes)
    for number in range(FILES):
        bodies = shape.bodies(case.messages // FILES, seed + number)
        table = pa.Table.from_arrays([bodies], names=["body"])
        pq.write_table(table, folder / f"{number}.parquet", compression="none")
