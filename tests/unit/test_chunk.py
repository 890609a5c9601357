"""What goes into a chunk comes out of it; what may not go in is refused by its row."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import BodyInvalid, OptionInvalid, RowCorrupt
from cassieq_spark.model.sizes import MAX_BODY_BYTES, MAX_EXTRA_BYTES
from cassieq_spark.spark import packer
from cassieq_spark.store import chunk
from tests.fixtures.rows import no_text

IDS = [UUID(int=5), None, UUID("0189abcd-ef01-7234-8567-89abcdef0123")]


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


messages = st.lists(
    st.tuples(
        st.binary(max_size=50),
        st.none() | st.text(max_size=5),
        st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.none() | st.uuids(),
    ),
    min_size=1,
    max_size=20,
)


@given(messages)
def test_every_column_survives(rows: list[Any]) -> None:
    bodies, tags, headers, ids = (list(column) for column in zip(*rows, strict=True))
    maps = [None if one is None else list(one.items()) for one in headers]
    given_batch = batch(
        body=pa.array(bodies, pa.binary()),
        tag=pa.array(tags, pa.string()),
        headers=pa.array(maps, pa.map_(pa.string(), pa.string())),
        message_id=pa.array([None if one is None else str(one) for one in ids], pa.string()),
    )

    stored = chunk.decode(chunk.encode(packer.from_input(given_batch, position=0)))

    def column(name: str) -> list[Any]:
        if name not in stored.schema.names:
            return [None] * len(rows)
        return list(stored.column(name).to_pylist())

    assert bodies == column("body")
    assert tags == column("tag")
    assert maps == column("headers")
    assert [None if one is None else one.bytes for one in ids] == column("message_id")


def test_a_column_of_nulls_is_not_stored() -> None:
    given_batch = batch(body=pa.array([b"a"]), tag=pa.array([None], pa.string()))

    stored = chunk.decode(chunk.encode(packer.from_input(given_batch, position=0)))

    assert ["body"] == stored.schema.names


def test_message_ids_as_bytes_and_as_text_are_the_same() -> None:
    raw = pa.array([None if one is None else one.bytes for one in IDS], pa.binary())
    text = pa.array([None if one is None else str(one).upper() for one in IDS], pa.string())
    bodies = pa.array([b""] * 3)

    stored = [
        packer.from_input(batch(body=bodies, message_id=ids), position=0).column("message_id")
        for ids in (raw, text, text.slice(0))
    ]

    assert stored[0] == stored[1] == stored[2]


def test_a_slice_is_encoded_as_it_looks() -> None:
    whole = packer.from_input(batch(body=pa.array([b"a", b"bb", b"ccc"])), position=0)

    stored = chunk.decode(chunk.encode(whole.slice(1, 1)))

    assert [b"bb"] == stored.column("body").to_pylist()
    assert [2, 3] == packer.row_sizes(whole.slice(1)).tolist()


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\xff" * 100])
def test_something_else_is_row_corrupt(garbage: bytes) -> None:
    with pytest.raises(RowCorrupt):
        chunk.decode(garbage)


def test_a_chunk_with_a_foreign_column_or_no_body_is_row_corrupt() -> None:
    for wrong in (batch(body=pa.array([b""]), other=pa.array([1])), batch(tag=pa.array(["a"]))):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, wrong.schema) as writer:
            writer.write_batch(wrong)
        with pytest.raises(RowCorrupt):
            chunk.decode(bytes(sink.getvalue()))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"tag": pa.array(["a"])}, "'body' .binary. is missing"),
        ({"body": pa.array(["text"])}, "cast"),
        ({"body": pa.array([1])}, "allowed: binary"),
        ({"body": pa.array([b""]), "tga": pa.array(["a"])}, "'tga'"),
        ({"body": pa.array([b""]), "tag": pa.array([1])}, "'tag' is int64"),
        ({"body": pa.array([b""]), "headers": pa.array(["a"])}, "'headers' is string"),
        ({"body": pa.array([b""]), "delay": pa.array(["1"])}, "'delay' is string"),
        ({"body": pa.array([b""]), "message_id": pa.array([1])}, "'message_id' is int64"),
    ],
)
def test_a_wrong_column_is_refused_by_name(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionInvalid, match=says):
        packer.from_input(batch(**columns), position=0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": pa.array([b"", None])}, "row 11 .* null body"),
        ({"body": pa.array([b"", b"x" * (MAX_BODY_BYTES + 1)])}, "row 11 .* bytes"),
        (
            {"body": pa.array([b""] * 2), "tag": pa.array(["a", "é" * (MAX_EXTRA_BYTES // 2 + 1)])},
            "row 11 .* tag, headers and group of 1048578 bytes",
        ),
        (
            {
                "body": pa.array([b""] * 2),
                "headers": pa.array(
                    [None, {"key": "v" * MAX_EXTRA_BYTES}], pa.map_(pa.string(), pa.string())
                ),
            },
            "row 11 .* tag, headers and group of 1048579 bytes",
        ),
        ({"body": pa.array([b""] * 2), "delay": pa.array([0.0, -1.0])}, "row 11 .* delay of -1"),
        ({"body": pa.array([b""] * 2), "delay": pa.array([0, float("nan")])}, "row 11 .* nan"),
        ({"body": pa.array([b""] * 2), "delay": pa.array([0, 1e9])}, "row 11 .* .400 days."),
        (
            {"body": pa.array([b""] * 2), "message_id": pa.array([None, "x"])},
            "row 11 .* not a UUID",
        ),
        ({"body": pa.array([b""] * 2), "message_id": pa.array([None, "g" * 36])}, "row 11"),
        ({"body": pa.array([b""] * 2), "message_id": pa.array([None, b"short"])}, "row 11"),
    ],
)
def test_a_wrong_row_is_named_by_its_position(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(BodyInvalid, match=says):
        packer.from_input(batch(**columns), position=10)


def test_delays_are_microseconds_and_none_where_nobody_waits() -> None:
    def delays(values: list[float | None]) -> list[int] | None:
        bodies = pa.array([b""] * len(values))
        checked = packer.from_input(
            batch(body=bodies, delay=pa.array(values, pa.float64())), position=0
        )
        found = packer.due_times(checked, 0)
        return None if found is None else found.tolist()

    assert [0, 1_500_000, 0] == delays([None, 1.5, 0.0])
    assert delays([None, 0.0]) is None
    assert packer.due_times(batch(body=pa.array([b""])), 0) is None


def test_what_does_not_compress_is_mostly_stored_as_it_is() -> None:
    """And what does is compressed, also after a stretch that did not."""
    noise = random.Random(7)  # noqa: S311 - the same in each run
    encoder = chunk.Encoder()

    def size_of(bodies: list[bytes]) -> float:
        batch = packer.from_input(pa.record_batch({"body": bodies}), position=0)
        payload = encoder.encode(batch)
        assert bodies == chunk.decode(payload).column("body").to_pylist()
        return len(payload) / batch.nbytes

    random_ = [size_of([noise.randbytes(96) for _ in range(200)]) for _ in range(40)]
    text = [size_of([b"the same again and again"] * 200) for _ in range(40)]

    assert all(share > chunk.WORTHWHILE for share in random_)
    assert sum(share < chunk.WORTHWHILE for share in text) > 40 - chunk.TRIED_EVERY
    assert text[-1] < 0.5


def no_texts(*pairs: tuple[bytes, bytes | None]) -> pa.Array:
    keys, items = (no_text(*some) for some in zip(*pairs, strict=True))
    ends = pa.array([0, 0, len(pairs)], pa.int32())
    return pa.MapArray.from_arrays(ends, keys, items)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"tag": no_text(b"t", b"\xff")}, "row 8 .* not UTF-8 in column 'tag'"),
        ({"key": no_text(b"t", b"\xff")}, "row 8 .* not UTF-8 in column 'key'"),
        ({"message_id": no_text(None, b"\xff")}, "row 8 .* not UTF-8 in column 'message_id'"),
        ({"headers": no_texts((b"\xff", b"x"))}, "row 8 .* not UTF-8 in column 'headers'"),
        ({"headers": no_texts((b"a", b"x\xff"))}, "row 8 .* not UTF-8 in column 'headers'"),
        ({"headers": no_texts((b"a", b"x"), (b"b", None))}, "row 8 .* no value for header 'b'"),
    ],
)
def test_text_that_nobody_could_read_is_refused_by_its_row(
    columns: dict[str, pa.Array], named: str
) -> None:
    given_batch = batch(body=pa.array([b"0", b"1"]), **columns)
    with pytest.raises(BodyInvalid, match=named):
        packer.from_input(given_batch, position=7)
    (good,) = packer.from_input(given_batch.slice(0, 1), position=7).to_pylist()
    assert b"0" == good["body"]


def test_what_older_sinks_stored_can_be_read() -> None:
    pairs = no_texts((b"a", None), (b"\xff", b"\xfe"))
    stored = batch(body=pa.array([b"0", b"1"]), tag=no_text(b"\xff", None), headers=pairs)
    found = [row for _, row in chunk.rows(chunk.decode(chunk.encode(stored)))]
    assert [("\ufffd", {}), (None, {"a": "", "\ufffd": "\ufffd"})] == [
        (row.tag, row.headers) for row in found
    ]
    again = chunk.from_rows(found)
    assert found == [row for _, row in chunk.rows(again)]
