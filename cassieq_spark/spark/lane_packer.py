"""Send each row of a writing task to its lane, by priority, key and due time, and pack it there.

A lane has a number here: its place among the queue's fixed lanes, and beyond these the due lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cassieq_spark.model.lanes import (
    MAX_KEY_BYTES,
    NOT_BEGUN_US,
    DueLane,
    longest_delay_us,
    shard_of,
)
from cassieq_spark.options import QueueSettings
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.schedule import DueLanes
from cassieq_spark.spark import arrays
from cassieq_spark.spark.packer import (
    KEY,
    PRIORITY,
    ChunkTaker,
    Packer,
    due_times,
    from_input,
    stored,
)
from cassieq_spark.store import portal

ONLY_LANE: Final = 0

MOST_OPEN: Final = 64
"""The most due lanes that a task keeps open at once: each has a bucket that is being written."""

LATER_BYTES: Final = 64 * 1024 * 1024
"""The bytes of rows for due lanes that are kept in memory, to write them lane by lane."""


@dataclass(frozen=True, slots=True)
class Sorting:
    """The rule that gives each row its lane; pickled into tasks.

    Attributes:
        settings: The queue's.
        partition: The input partition of the rows: those without a key stay together.
    """

    settings: QueueSettings
    partition: int

    @property
    def fixed(self) -> int:
        """The number of lanes that the queue always has: due lanes have higher numbers."""
        return self.settings.priorities * self.settings.shards

    @property
    def own_shard(self) -> int:
        """The shard of rows without a key."""
        return self.partition % self.settings.shards

    def lanes(
        self, batch: pa.RecordBatch, due: NDArray[np.int64] | None, *, now_us: int, position: int
    ) -> NDArray[np.int64] | None:
        """The number of each row's lane; None: `ONLY_LANE` for all.

        Args:
            batch: As `packer.from_input` returns it.
            due: As `packer.due_times` returns it, by the same ``now_us``.
            position: The position of its first row in the partition, for errors.

        Raises:
            BodyInvalid: A priority is out of range, a key too long, or a row due too far ahead; it
                names the row.
        """
        classes = self._classes(batch, position)
        shards = self._shards(batch, position)
        if due is None:
            return None if self.fixed == 1 else classes * self.settings.shards + shards
        self._check_due(due, now_us, position)
        periods = due // self.settings.period_us
        # As `model.lanes.due_lane` decides for one message.
        is_far = due - now_us > int(self.settings.schedule_after_s * 1e6)
        is_far &= periods * self.settings.period_us > now_us + NOT_BEGUN_US
        return np.where(
            is_far,
            self.fixed + periods * self.settings.priorities + classes,
            classes * self.settings.shards + shards,
        )

    def due_lane(self, number: int) -> DueLane | None:
        """The due lane of this number; None: it is that of a fixed lane."""
        if number < self.fixed:
            return None
        period, priority = divmod(number - self.fixed, self.settings.priorities)
        return DueLane(period, priority)

    def ordinary(self, due: DueLane) -> int:
        """The lane of rows whose due lane takes no messages any more."""
        return due.priority * self.settings.shards + self.own_shard

    def _check_due(self, due: NDArray[np.int64], now_us: int, position: int) -> None:
        longest_us = longest_delay_us(self.settings.period_us)
        arrays.refuse(
            due - now_us > longest_us,
            position,
            lambda row: (
                f"is due in {(due[row] - now_us) / 86_400e6:.1f} days, but with schedule_period="
                f"{self.settings.period_us / 1e6:g} a message of this queue may be due at most "
                f"{longest_us / 86_400e6:g} days ahead: 400 days, and 10,000 periods"
            ),
        )

    def _classes(self, batch: pa.RecordBatch, position: int) -> NDArray[np.int64]:
        if PRIORITY not in batch.schema.names:
            return np.zeros(batch.num_rows, dtype=np.int64)
        classes = arrays.numbers(batch.column(PRIORITY))
        arrays.refuse(
            (classes < 0) | (classes >= self.settings.priorities),
            position,
            lambda row: (
                f"has priority {classes[row]}, allowed: 0 to {self.settings.priorities - 1}. The "
                f"queue was created with priorities={self.settings.priorities}"
            ),
        )
        return classes

    def _shards(self, batch: pa.RecordBatch, position: int) -> NDArray[np.int64]:
        own = self.own_shard
        if KEY not in batch.schema.names:
            return np.full(batch.num_rows, own, dtype=np.int64)
        keys = batch.column(KEY)
        lengths = np.asarray(pc.fill_null(pc.binary_length(keys), 1))
        arrays.refuse(
            (lengths < 1) | (lengths > MAX_KEY_BYTES),
            position,
            lambda row: (
                f"has a key of {lengths[row]} bytes, allowed: 1 to {MAX_KEY_BYTES}, or null"
            ),
        )
        coded = keys.dictionary_encode()
        of_key = np.array(
            [*(shard_of(key, self.settings.shards) for key in coded.dictionary.to_pylist()), own],
            dtype=np.int64,
        )
        # A null has no code: it takes the last place of the table.
        codes = pc.fill_null(coded.indices, len(of_key) - 1)
        return np.asarray(of_key[np.asarray(codes.to_numpy(zero_copy_only=False))])


class SortedLanes:
    """The lanes that a writer's rows take, by number; a due lane is made when it is first needed.

    Args:
        lane: Any lane of the queue.
    """

    def __init__(self, lane: Lane, sorting: Sorting) -> None:
        self._lane = lane
        self._sorting = sorting
        self._due_lanes = DueLanes()

    async def lane(self, number: int) -> Lane:
        """The lane of this number, or an ordinary one if it is due and takes no messages any more.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: It is unknown whether there is such a lane.
        """
        due = self._sorting.due_lane(number)
        if due is not None:
            its_lane = await self._due_lanes.get(self._lane, due)
            if its_lane is not None:
                return its_lane
            number = self._sorting.ordinary(due)
        return self._lane.sibling(self._lane.lanes[number])

    def make(self, numbers: Sequence[int]) -> list[Lane]:
        """The lanes of these numbers, side by side; see `lane`."""
        return portal.run(self._lane.store.session.map(self.lane, numbers))


class LanePacker:
    """Packs the rows of one partition, each for its lane.

    Rows for due lanes may be for thousands of them, so they wait, and are then written lane by
    lane: a task has at most `MOST_OPEN` of these open.
    """

    def __init__(
        self,
        takers: Callable[[int], ChunkTaker],
        sorting: Sorting,
        now_us: Callable[[], int],
        *,
        chunk_messages: int,
        chunk_bytes: int,
        expect: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            takers: Makes what takes a lane's chunks, at its first row.
            expect: Is told of which due lanes chunks come next.
        """
        self._takers = takers
        self._expect = expect
        self._sorting = sorting
        self._now_us = now_us
        self._packer = partial(Packer, chunk_messages=chunk_messages, chunk_bytes=chunk_bytes)
        self._packers: dict[int, Packer] = {}
        self._position = 0
        self._later: list[tuple[pa.RecordBatch, NDArray[np.int64]]] = []
        self._later_bytes = 0
        self._open: dict[int, ChunkTaker] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a record batch as it comes from Spark.

        Raises:
            BodyInvalid: A row cannot be put; names its position in the partition.
        """
        checked = from_input(batch, position=self._position)
        now_us = self._now_us()
        due = due_times(checked, now_us)
        lanes = self._sorting.lanes(checked, due, now_us=now_us, position=self._position)
        self._position += batch.num_rows
        checked = stored(checked, due)
        if lanes is None:
            self._of(ONLY_LANE).add(checked)
            return
        is_far = lanes >= self._sorting.fixed
        for lane in np.unique(lanes[~is_far]).tolist():
            here = lanes == lane
            self._of(lane).add(checked if here.all() else checked.filter(pa.array(here)))
        if is_far.any():
            self._keep(checked.filter(pa.array(is_far)), lanes[is_far])

    def flush(self) -> None:
        """Write the rows that wait, of all lanes."""
        for packer in self._packers.values():
            packer.flush()
        self._write_later()

    def _of(self, lane: int) -> Packer:
        if lane not in self._packers:
            self._packers[lane] = self._packer(self._takers(lane))
        return self._packers[lane]

    def _keep(self, batch: pa.RecordBatch, lanes: NDArray[np.int64]) -> None:
        if self._later_bytes + batch.nbytes > LATER_BYTES:
            self._write_later()
        self._later.append((batch, lanes))
        self._later_bytes += batch.nbytes

    def _write_later(self) -> None:
        """Write the rows that wait for due lanes, lane by lane, those of a lane in their order."""
        waiting, self._later, self._later_bytes = self._later, [], 0
        if not waiting:
            return
        batch = pa.concat_batches([batch for batch, _ in waiting])
        lanes = np.concatenate([lanes for _, lanes in waiting])
        order = np.argsort(lanes, kind="stable")
        batch, lanes = batch.take(pa.array(order)), lanes[order]
        numbers, starts = np.unique(lanes, return_index=True)
        ends = [*starts[1:].tolist(), len(lanes)]
        parts = list(zip(numbers.tolist(), starts.tolist(), ends, strict=True))
        for at in range(0, len(parts), MOST_OPEN):
            some = parts[at : at + MOST_OPEN]
            if self._expect is not None:
                self._expect([number for number, _, _ in some])
            for number, start, end in some:
                self._write_due(number, batch.slice(start, end - start))

    def _write_due(self, number: int, rows: pa.RecordBatch) -> None:
        taker = self._open.pop(number, None) or self._takers(number)
        self._open[number] = taker  # last again
        packer = self._packer(taker)
        packer.add(rows)
        packer.flush()
        while len(self._open) > MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
