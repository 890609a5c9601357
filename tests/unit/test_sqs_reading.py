"""JSON of the SQS door: nothing that its count of values does not see reaches the parser."""

from __future__ import annotations

import json

import pytest

from cassieq_spark.server.sqs.protocol import FIELDS, TooManyValues, from_json

HIDDEN = '["\\"",' + "0," * FIELDS + "0]"
"""Whoever takes the escaped mark for the end of the text takes the rest for another text."""


def is_refused(text: str | bytes) -> bool:
    try:
        from_json(text)
    except ValueError:
        return True
    return False


def test_as_many_values_as_a_request_may_have_are_read() -> None:
    most = [0] * (FIELDS - 1)

    assert most == from_json(json.dumps(most))
    with pytest.raises(TooManyValues):
        from_json(json.dumps([*most, 0, 0]))
    with pytest.raises(TooManyValues):
        from_json(HIDDEN)


def test_a_text_may_begin_with_a_mark_and_hold_half_a_character() -> None:
    assert {"a": "é"} == from_json(b'\xef\xbb\xbf{"a":"\xc3\xa9"}')
    assert "\ud800" == from_json('"\ud800"')


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_no_other_encoding_is_read(encoding: str) -> None:
    assert is_refused(HIDDEN.encode(encoding))
    assert is_refused("[1]".encode(encoding))


@pytest.mark.parametrize("text", ["", "[", "[" * 900, "{'a':1}", "[" * 1_900 + "]" * 1_900])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    assert is_refused(text)
