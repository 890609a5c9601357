"""Group ids: which are taken, how they are stored, and that messages without one pay nothing."""

from __future__ import annotations

import string
import subprocess
import sys
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model import group
from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
from cassieq_spark.model.sizes import MAX_EXTRA_BYTES
from cassieq_spark.queue.put import encode
from cassieq_spark.spark import packer
from cassieq_spark.spark.columns import Builder
from cassieq_spark.store import chunk

TAKEN = string.ascii_letters + string.digits + string.punctuation
"""As SQS lists it."""

BAD = ["", "x" * 129, "two words", "é", "line\n", "\x7f"]

ids = st.text(TAKEN, min_size=1, max_size=128)
names = st.text(max_size=14).filter(lambda name: name != group.HEADER)
headers = st.none() | st.dictionaries(names, st.text(max_size=3), max_size=3)


def stored(**given_: Any) -> list[chunk.Row]:
    return encode.messages([b"a", b"b"], **given_)


def groups_of(rows: list[chunk.Row]) -> list[str | None]:
    return [group.split(row.headers)[1] for row in rows]


@given(st.characters())
def test_the_characters_are_those_of_sqs(one: str) -> None:
    assert (one in TAKEN) == group.is_group(one)


@given(ids)
def test_every_id_of_sqs_is_taken(one: str) -> None:
    assert [one, one] == groups_of(stored(group=one))


@pytest.mark.parametrize("bad", [*BAD, 7, b"a", {"a": "b"}])
def test_what_is_no_group_id_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(OptionInvalid, match=r"group is .*, allowed: 1 to 128 letters"):
        stored(group=bad)
    with pytest.raises(OptionInvalid, match=r"group\[1\] is .*, allowed: 1 to 128 letters"):
        stored(group=["a", bad])


def test_each_message_has_its_own_or_all_have_the_same() -> None:
    assert [None, "b"] == groups_of(stored(group=[None, "b"]))
    assert ["b", "b"] == groups_of(stored(group="b", headers=[{"h": "1"}, None]))
    assert [{"h": "1"}, {}] == [
        group.split(row.headers)[0] for row in stored(group="b", headers=[{"h": "1"}, None])
    ]
    with pytest.raises(OptionInvalid, match="group has 3 entries for 2 bodies"):
        stored(group=["a", "b", "c"])


def test_messages_of_one_group_share_their_headers() -> None:
    one, other = stored(group="a", headers={"h": "1"})
    assert one.headers is other.headers


def test_a_producer_does_not_write_the_stored_form_itself() -> None:
    says = "header 'cassieq-group' is how a queue stores a group id. Give group='x' in its place"
    for given_ in ({group.HEADER: "x"}, [None, {group.HEADER: "x"}]):
        with pytest.raises(OptionInvalid, match=says):
            stored(headers=given_)
        with pytest.raises(OptionInvalid, match=says):
            stored(headers=given_, group="y")


def test_a_group_counts_among_the_bytes_beside_a_body() -> None:
    fits = {"h": "x" * (MAX_EXTRA_BYTES - 1)}
    assert stored(headers=fits)
    with pytest.raises(OptionInvalid, match="tag, headers and group have 1,048,590 bytes"):
        stored(headers=fits, group="g")


def test_messages_without_a_group_are_stored_as_ever() -> None:
    plain = stored(headers={"h": "1"})
    assert chunk.from_rows(plain).equals(
        chunk.from_rows(stored(headers={"h": "1"}, group=[None, None]))
    )
    batch = chunk.from_rows(plain)
    assert not chunk.may_have_groups(batch)
    assert not chunk.may_have_groups(chunk.from_rows(stored()))
    assert chunk.may_have_groups(chunk.from_rows(stored(group=[None, "g"])))


# --- Spark ----------------------------------------------------------------------------------------


def frame(
    rows: list[tuple[dict[str, str] | None, str | None]], *, large: bool = False
) -> pa.RecordBatch:
    """Bodies, headers and groups, as Spark brings them."""
    text = pa.large_string() if large else pa.string()
    maps = [None if one is None else list(one.items()) for one, _ in rows]
    return pa.record_batch(
        {
            "body": pa.array([b"%d" % at for at in range(len(rows))], pa.binary()),
            "headers": pa.array(maps, pa.map_(text, text)),
            "group": pa.array([one for _, one in rows], text),
        }
    )


def read(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """What a source shows of a chunk with these rows."""
    builder = Builder(("headers", "group"), QueueName("q"), LaneId(UUID(int=1)), bucket_size=100)
    built = builder.build(
        batch,
        bucket=BucketNo(0),
        first=0,
        keep=None,
        lease=None,
        delivery_count=1,
        enqueued_us=0,
    )
    built.validate(full=True)
    found: list[dict[str, Any]] = built.to_pylist()
    return found


@given(
    rows=st.lists(st.tuples(headers, st.none() | ids), min_size=1, max_size=20),
    at=st.integers(0, 19),
    large=st.booleans(),
)
def test_a_column_of_groups_comes_back_beside_the_headers(
    rows: list[tuple[dict[str, str] | None, str | None]], at: int, large: bool
) -> None:
    some = rows[at:]
    put = packer.stored(packer.from_input(frame(rows, large=large).slice(at), position=0), None)
    put.validate(full=True)
    payload = chunk.encode(put)

    by_message = [group.split(row.headers) for _, row in chunk.rows(chunk.decode(payload))]
    by_column = read(chunk.decode(payload))

    assert [(its or {}, one) for its, one in some] == by_message
    # Beside a group, an empty map of headers is none.
    assert [
        {
            "headers": None if its is None or (one and not its) else list(its.items()),
            "group": one,
        }
        for its, one in some
    ] == by_column
    assert by_column[1:] == read(chunk.decode(payload).slice(1))


def test_a_group_needs_no_headers_beside_it() -> None:
    batch = frame([(None, "a"), (None, None)]).select(["body", "group"])
    put = packer.stored(packer.from_input(batch, position=0), None)

    assert [{"headers": None, "group": one} for one in ("a", None)] == read(put)
    # Rows of all batches are put together, so all have the same columns.
    none = packer.from_input(batch.slice(1), position=0)
    assert put.schema == packer.stored(none, None).schema


@pytest.mark.parametrize("bad", BAD)
def test_a_row_whose_group_is_wrong_is_named(bad: str) -> None:
    batch = frame([(None, "x"), (None, "ok"), (None, None), (None, bad), (None, "z")])
    with pytest.raises(BodyInvalid, match="row 13 of its input partition has group"):
        packer.from_input(batch.slice(1), position=11)


def test_a_row_with_the_stored_form_is_named() -> None:
    rows = [(None, None), ({"a": group.HEADER}, None), ({"a": "1", group.HEADER: "x"}, None)]
    with pytest.raises(BodyInvalid, match=r"row 12 .*header 'cassieq-group', .*column 'group'"):
        packer.from_input(frame(rows).select(["body", "headers"]), position=10)
    assert packer.from_input(frame(rows[:2]), position=10)


def test_the_names_of_two_headers_are_no_group_together() -> None:
    batch = frame([({"cassieq": "1", "-group": "2"}, None)])
    put = packer.stored(packer.from_input(batch, position=0), None)
    assert [{"headers": [("cassieq", "1"), ("-group", "2")], "group": None}] == read(put)


def test_row_sizes_count_the_group() -> None:
    with_one, without = (
        packer.row_sizes(packer.from_input(frame([({"h": "1"}, one)]), position=0)).tolist()
        for one in ("abc", None)
    )
    assert [len(group.HEADER) + 3] == [a - b for a, b in zip(with_one, without, strict=True)]


_LEAN = """
import sys
from uuid import UUID
import pyarrow as pa
from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
from cassieq_spark.spark import columns, packer
from cassieq_spark.store import chunk
ends = pa.py_buffer(bytes([0, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0]))
data = pa.py_buffer(b"onetwo")
body, text = (pa.Array.from_buffers(kind, 2, [None, ends, data])
              for kind in (pa.binary(), pa.string()))
rows = pa.RecordBatch.from_arrays([body, text], names=["body", "group"])
stored = packer.stored(packer.from_input(rows, position=0), None)
builder = columns.Builder(("headers", "group"), QueueName("q"), LaneId(UUID(int=1)),
    bucket_size=50)
found = builder.build(chunk.decode(chunk.encode(stored)), bucket=BucketNo(1), first=0, keep=None,
    lease=None, delivery_count=1, enqueued_us=5)
assert "pandas" not in sys.modules
assert ["one", "two"] == found.column(1).to_pylist()
"""


def test_groups_import_no_pandas() -> None:
    subprocess.run([sys.executable, "-c", _LEAN], check=True, timeout=120)
