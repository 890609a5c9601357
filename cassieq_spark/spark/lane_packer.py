"""Send each row of a writing task to its lane, by its priority and key, and pack it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cassieq_spark.errors import BodyInvalid
from cassieq_spark.model.lanes import MAX_KEY_BYTES, shard_of
from cassieq_spark.spark.packer import KEY, PRIORITY, Packer, from_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.packer import ChunkTaker

ONLY_LANE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """Which lane a row takes; pickled into tasks.

    Attributes:
        priorities: How many classes the queue has.
        shards: How many lanes each class has.
        own_shard: The shard of rows without a key.
    """

    priorities: int = 1
    shards: int = 1
    own_shard: int = 0

    def lanes(self, batch: pa.RecordBatch, *, position: int) -> NDArray[np.int64] | None:
        """The place of each row's lane among the queue's lanes; None: the same lane for all.

        Args:
            batch: As `packer.from_input` returns it.
            position: The position of its first row in the partition, for errors.

        Raises:
            BodyInvalid: A priority is out of range, or a key too long; it names the row.
        """
        classes = self._classes(batch, position)
        shards = self._shards(batch, position)
        if self.priorities * self.shards == 1:
            return None
        return classes * self.shards + shards

    def _classes(self, batch: pa.RecordBatch, position: int) -> NDArray[np.int64]:
        if PRIORITY not in batch.schema.names:
            return np.zeros(batch.num_rows, dtype=np.int64)
        column = pc.fill_null(batch.column(PRIORITY), 0)
        classes = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
        wrong = (classes < 0) | (classes >= self.priorities)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BodyInvalid(
                f"row {position + row} of its input partition has priority {classes[row]}, "
                f"allowed: 0 to {self.priorities - 1}. The queue was created with "
                f"priorities={self.priorities}"
            )
        return classes

    def _shards(self, batch: pa.RecordBatch, position: int) -> NDArray[np.int64]:
        own = self.own_shard % self.shards
        if KEY not in batch.schema.names:
            return np.full(batch.num_rows, own, dtype=np.int64)
        keys = batch.column(KEY)
        lengths = np.asarray(pc.fill_null(pc.binary_length(keys), 1))
        wrong = (lengths < 1) | (lengths > MAX_KEY_BYTES)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BodyInvalid(
                f"row {position + row} of its input partition has a key of {lengths[row]} bytes, "
                f"allowed: 1 to {MAX_KEY_BYTES}, or null"
            )
        coded = keys.dictionary_encode()
        of_key = np.array(
            [*(shard_of(key, self.shards) for key in coded.dictionary.to_pylist()), own],
            dtype=np.int64,
        )
        # A null has no code: it takes the last place of the table.
        codes = pc.fill_null(coded.indices, len(of_key) - 1)
        return np.asarray(of_key[np.asarray(codes.to_numpy(zero_copy_only=False))])


def sorting(lane: Lane, partition: int) -> Sorting:
    """How the rows of one input partition are sorted: those without a key stay together."""
    settings = lane.settings
    return Sorting(
        priorities=settings.priorities,
        shards=settings.shards,
        own_shard=partition % settings.shards,
    )


class LanePacker:
    """Packs the rows of one partition, each for its lane."""

    def __init__(
        self,
        takers: Callable[[int], ChunkTaker],
        sorting: Sorting,
        now_us: Callable[[], int],
        *,
        chunk_messages: int,
        chunk_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            takers: Makes what takes a lane's chunks, at its first row.
        """
        self._takers = takers
        self._sorting = sorting
        self._now_us = now_us
        self._messages = chunk_messages
        self._bytes = chunk_bytes
        self._packers: dict[int, Packer] = {}
        self._position = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a record batch as it comes from Spark.

        Raises:
            BodyInvalid: A row cannot be put; names its position in the partition.
        """
        checked = from_input(batch, position=self._position)
        lanes = self._sorting.lanes(checked, position=self._position)
        self._position += batch.num_rows
        names = [name for name in checked.schema.names if name not in (PRIORITY, KEY)]
        checked = checked.select(names)
        if lanes is None:
            self._of(ONLY_LANE).add(checked)
            return
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            self._of(lane).add(checked if here.all() else checked.filter(pa.array(here)))

    def flush(self) -> None:
        """Write the rows that wait, of all lanes."""
        for packer in self._packers.values():
            packer.flush()

    def _of(self, lane: int) -> Packer:
        if lane not in self._packers:
            self._packers[lane] = Packer(
                self._takers(lane),
                self._now_us,
                chunk_messages=self._messages,
                chunk_bytes=self._bytes,
            )
        return self._packers[lane]
