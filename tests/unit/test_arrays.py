"""Arrow arrays read and made by their buffers are what pyarrow itself says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.spark import arrays

TEXTS = st.lists(st.none() | st.text(max_size=5), max_size=40)
CUT = st.tuples(st.integers(0, 9), st.integers(0, 40))

WITHOUT_PANDAS = """
import sys
import pyarrow as pa
from cassieq_spark.model.ids import LaneId, QueueName, Runs
from cassieq_spark.spark import columns, packer, schema
from uuid import UUID

class Writer:
    payloads = []
    def capacity(self): return 50
    def add(self, payload, count, due_us=None): self.payloads.append(payload)
    def close(self): pass

made = pa.py_buffer(b"onetwo"), pa.py_buffer(bytes([0, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0]))
body = pa.Array.from_buffers(pa.binary(), 2, [None, made[1], made[0]])
tag = pa.Array.from_buffers(pa.string(), 2, [None, made[1], made[0]])
rows = pa.RecordBatch.from_arrays([body, tag], names=["body", "tag"])
batch = packer.from_input(rows, position=0)
some = packer.Packer(Writer(), chunk_messages=10, chunk_bytes=1_000)
some.add(packer.stored(batch, packer.due_times(batch, 0)))
some.flush()
names = tuple(schema.ALL.names)
builder = columns.Builder(names, QueueName("q"), LaneId(UUID(int=1)), bucket_size=50)
from cassieq_spark.store import chunk
found = builder.build(chunk.decode(Writer.payloads[0]), bucket=1, first=0, keep=Runs.span(1, 1),
    lease=UUID(int=2), delivery_count=1, enqueued_us=5)
assert found.num_rows == 1
assert "pandas" not in sys.modules
"""


def cut(array: pa.Array, at: tuple[int, int]) -> pa.Array:
    """A slice, whose buffers begin before it."""
    return array.slice(min(at[0], len(array)), at[1])


@given(values=TEXTS, at=CUT, kind=st.sampled_from([pa.string(), pa.large_string()]))
def test_lengths_are_bytes_and_nothing_for_null(
    values: list[str | None], at: tuple[int, int], kind: pa.DataType
) -> None:
    array = cut(pa.array(values, kind), at)
    expected = [0 if text is None else len(text.encode()) for text in array.to_pylist()]
    assert expected == arrays.lengths(array).tolist()
    assert [text is not None for text in array.to_pylist()] == arrays.is_valid(array).tolist()


@given(
    values=st.lists(st.none() | st.integers(0, 100), max_size=40),
    at=CUT,
    kind=st.sampled_from([pa.int32(), pa.int64(), pa.uint8(), pa.float64(), pa.timestamp("us")]),
)
def test_numbers_are_the_values_and_nothing_is_zero(
    values: list[int | None], at: tuple[int, int], kind: pa.DataType
) -> None:
    array = cut(pa.array(values, kind), at)
    expected = [value or 0 for value in values][array.offset : array.offset + len(array)]
    assert expected == arrays.numbers(array).tolist()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("orders", pa.string()),
        ("", pa.string()),
        (7, pa.int32()),
        (-(2**40), pa.int64()),
        (1_700_000_000_000_000, pa.timestamp("us", tz="UTC")),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_repeated_value_is_what_pyarrow_repeats(
    value: Any, kind: pa.DataType, count: int
) -> None:
    made = arrays.repeated(value, count, kind)
    made.validate(full=True)
    assert pa.repeat(pa.scalar(value, kind), count) == made


def test_integers_keep_their_width() -> None:
    assert pa.array([1, 2], pa.int64()) == arrays.integers(np.array([1, 2]))
    assert pa.array([1, 2], pa.int32()) == arrays.integers(np.array([1, 2], dtype=np.int32))


def test_spark_s_workers_write_and_read_without_pandas() -> None:
    """Pandas is installed here, and pyarrow would import it: half a second in each worker."""
    pytest.importorskip("pandas")
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)
