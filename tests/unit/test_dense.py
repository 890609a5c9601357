"""How many values a JSON text has: the count by its bytes is that of a parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.dense import has_more_values

TEXTS = st.text(st.sampled_from('a,[]{}:"\\\n é'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def values_in(value: Any) -> int:
    """All values within a value; an empty list or object counts one, as it has a bracket."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return max(1, len(inner)) + sum(map(values_in, inner))


@given(value=VALUES, is_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_the_count_is_that_of_a_parser(value: Any, *, is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    count = values_in(value)

    assert not has_more_values(text, count)
    assert count == 0 or has_more_values(text, count - 1)


@pytest.mark.parametrize("one", [b"{},", b'"a",', b'"k":1,', b"[", b'"\\"\\\\",'])
def test_what_has_no_end_has_too_many(one: bytes) -> None:
    assert has_more_values(b"[" + 100 * one, 20)


def test_the_marks_within_texts_do_not_count() -> None:
    body = json.dumps({"body": json.dumps([{"a": [1, 2, "\\"]}] * 1_000)}).encode()

    assert not has_more_values(body, 1)
    assert has_more_values(json.dumps({"body": [1] * 1_000}).encode(), 999)
