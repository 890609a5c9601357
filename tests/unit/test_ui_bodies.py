"""The page shows what a body is, all of it can be seen, and pictures are of what is there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue.inspect.facts import LeaseFacts
from cassieq_spark.queue.inspect.stats import spans_of
from cassieq_spark.server.ui import bodies
from cassieq_spark.server.ui.queues import Holder, holders_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_bodies_are_shown_as_what_they_are() -> None:
    cases = {
        b'{"a": [1, {}]}': ("json", '{\n  "a": [\n    1,\n    {}\n  ]\n}'),
        b"hello": ("text", "hello"),
        b'"hello"': ("text", '"hello"'),
        b"{not json": ("text", "{not json"),
        b"": ("text", ""),
        b"\xff\x00A": ("hex", "00000000  ff 00 41                 ..A"),
    }
    for body, expected in cases.items():
        found = bodies.shown(body)
        assert expected == (found.kind, found.text), body
        assert (len(body), False) == (found.size, found.is_cut)


def test_json_is_laid_out_and_never_altered() -> None:
    body = b'{"n":1e999,"n":12345678901234567890123, "s":"a,b:{\\"}"}'
    expected = '{\n  "n": 1e999,\n  "n": 12345678901234567890123,\n  "s": "a,b:{\\"}"\n}'
    assert expected == bodies.shown(body).text


@given(JSON.filter(lambda one: isinstance(one, dict | list)))
def test_laid_out_json_is_the_same_json(value: Any) -> None:
    text = json.dumps(value)
    laid_out = bodies.indented(text)
    assert laid_out is not None
    assert value == json.loads(laid_out)
    assert json.dumps(value, indent=2) == laid_out


@given(st.binary(max_size=300), st.sampled_from(["auto", "text", "json", "hex"]))
def test_any_body_is_shown_and_nothing_in_it_is_hidden(body: bytes, how: bodies.How) -> None:
    found = bodies.shown(body, how)
    assert found.kind == ("hex" if how == "hex" else found.kind)
    assert all(one in "\n\t" or one.isprintable() for one in found.text)


def test_what_turns_text_around_is_named() -> None:
    assert "a\\u{202e}b\\u{0}c" == bodies.shown("a\u202eb\0c".encode()).text


def test_long_bodies_are_cut() -> None:
    for body in (b"a" * 100_000, b"[" * 100_000, b"\xff" * 100_000):
        found = bodies.shown(body)
        assert found.is_cut
        assert 100_000 == found.size
        assert len(found.text) <= bodies.MOST_TEXT
    assert 256 == len(bodies.dump(b"\xff" * 100_000).splitlines())


def test_hex_says_the_place_the_bytes_and_their_ascii() -> None:
    first, second = bodies.dump(b"012345678\n").splitlines()
    assert "00000000  30 31 32 33 34 35 36 37  01234567" == first
    assert "00000008  38 0a" + 20 * " " + "8." == second


@pytest.mark.parametrize("start", [0, 7])
@given(length=st.integers(0, 500), reader=st.integers(0, 600), most=st.integers(3, 60))
def test_the_buckets_of_a_picture_are_as_many_as_asked_with_both_ends_and_r(
    start: int, length: int, reader: int, most: int
) -> None:
    live = range(start, start + length)
    spans = spans_of(live, reader, most)
    shown = [bucket for span in spans for bucket in span]
    assert sorted(set(shown)) == shown
    assert set(shown) <= set(live)
    assert len(shown) <= most
    if length <= most:
        assert list(live) == shown
    else:
        assert {live[0], live[-1]} <= set(shown)
        assert reader not in live or reader in shown


def lease(consumer: str, messages: int, *, run: str | None = None, until_us: int = 9) -> LeaseFacts:
    return LeaseFacts(
        lane="lane",
        priority=0,
        bucket=BucketNo(0),
        consumer=consumer,
        lease_id="lease",
        run=run,
        messages=messages,
        delivery_count=1,
        until_us=until_us,
        is_expired=until_us < 5,
        id_runs=((0, messages - 1),),
    )


def test_leases_are_shown_by_who_holds_them() -> None:
    leases = [
        lease("b", 3),
        lease("a", 1, run="r", until_us=7),
        lease("b", 2, until_us=8),
        lease("b", 4, until_us=1),
        lease("a", 5),
    ]
    assert [
        Holder(consumer="a", run=None, messages=5, leases=1, until_us=9),
        Holder(consumer="a", run="r", messages=1, leases=1, until_us=7),
        Holder(consumer="b", run=None, messages=5, leases=2, expired=4, until_us=8),
    ] == holders_of(leases)
