"""Arguments of a queue's methods: each wrong one a named error that says what is allowed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model.sizes import MAX_BODY_BYTES
from cassieq_spark.options import QueueSettings, arguments
from cassieq_spark.queue.put import encode

WRONG_TIMES = (-1, -0.001, math.nan, math.inf, -math.inf, 10**400, "30", "30s", None, True, b"1")
TIMES: tuple[Callable[[Any], Any], ...] = (
    arguments.visibility_us,
    arguments.extension_us,
    arguments.delay_us,
    arguments.wait_s,
)


@pytest.mark.parametrize("value", WRONG_TIMES, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("parse", TIMES, ids=lambda parse: parse.__name__)
def test_a_time_that_is_none_is_refused(parse: Callable[[Any], Any], value: object) -> None:
    with pytest.raises(OptionInvalid, match="allowed: a time from"):
        parse(value)


def test_times_are_seconds_or_timedelta() -> None:
    assert 1_500_000 == arguments.visibility_us(1.5)
    assert 60_000_000 == arguments.visibility_us(timedelta(minutes=1))
    assert 0 == arguments.delay_us(0)
    assert 30 * 86_400_000_000 == arguments.extension_us(timedelta(days=30))


REFUSED: dict[Callable[[Any], Any], tuple[str, list[Any]]] = {
    arguments.visibility_us: (
        r"visibility_timeout is .*0.1 s to 30 d",
        [0, 0.09, timedelta(days=31), 10**10],
    ),
    partial(arguments.count, "max_messages"): (
        "max_messages is",
        [0, -1, 1.0, "1", None, True, np.True_, np.float64(3), arguments.MOST_MESSAGES + 1],
    ),
    arguments.headers: (
        "header",
        [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}, [("a", "b")], "a=b", {"a": "\ud800"}],
    ),
    arguments.tag: ("tag is", [7, b"t", "\udfff", ["t"]]),
    arguments.message_id: (
        "allowed: a UUID",
        ["", "x", "1" * 36, f"{{{UUID(int=1)}}}", 7, b"x" * 16, "0" * 32],
    ),
    arguments.consumer: ("consumer is", ["", "c" * 201, 7, None]),
}


@pytest.mark.parametrize(
    ("parse", "value"), [(parse, one) for parse, (_, some) in REFUSED.items() for one in some]
)
def test_what_is_not_allowed_is_refused_with_what_is(
    parse: Callable[[Any], Any], value: object
) -> None:
    with pytest.raises(OptionInvalid, match=REFUSED[parse][0]):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (arguments.body, "text", r"Encode it, e\.g\. body\.encode"),
        (arguments.body, None, "NoneType"),
        (arguments.body, 7, "int"),
        (arguments.body, {"a": 1}, "Serialise"),
        (arguments.body, bytes(MAX_BODY_BYTES + 1), "16,777,217"),
        *((encode.messages, one, "list of bodies") for one in (b"abc", "abc", bytearray(b"abc"))),
    ],
)
def test_what_is_no_body_or_no_list_of_them_says_what_to_do(
    parse: Callable[[Any], Any], value: object, says: str
) -> None:
    with pytest.raises(BodyInvalid, match=says):
        parse(value)


class Three:
    """Whole to Python, as numbers of numpy are."""

    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), Three()], ids=["i8", "u1", "own"])
def test_whatever_python_takes_for_a_whole_number_is_one(value: Any) -> None:
    count = arguments.count("max_messages", value)

    assert (3, int) == (count, type(count))
    assert 3_000_000 == arguments.delay_us(value)
    assert 3 == arguments.priority("priority", value, 10)
    assert 3 == QueueSettings.parse(max_deliveries=value).max_deliveries
    assert 3 == arguments.id_of(value)


def test_bodies_are_anything_that_is_bytes() -> None:
    for value in (b"a", bytearray(b"a"), memoryview(b"a")):
        assert b"a" == arguments.body(value)


def test_put_many_says_which_body_is_wrong() -> None:
    with pytest.raises(BodyInvalid, match="number 1 of 3"):
        encode.messages([b"a", "b", b"c"])
    with pytest.raises(BodyInvalid, match="not int"):
        encode.messages(7)  # type: ignore[arg-type]


def test_tag_and_headers_together_have_a_limit() -> None:
    with pytest.raises(OptionInvalid, match="into the body"):
        encode.messages([b""], tag="t" * 600_000, headers={"h": "v" * 500_000})


def test_a_message_id_is_a_uuid_or_its_text() -> None:
    one = UUID(int=1)
    assert one == arguments.message_id(one) == arguments.message_id(str(one).upper())


def test_message_ids_are_as_many_as_bodies() -> None:
    with pytest.raises(OptionInvalid, match="1 entries for 2 bodies"):
        encode.messages([b"a", b"b"], message_ids=[None])


def test_an_argument_that_the_locale_cannot_read_says_that_it_is_the_locale() -> None:
    program = "import sys; from cassieq_spark.options import arguments; arguments.tag(sys.argv[1])"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    ended = subprocess.run(
        [sys.executable, "-c", program, "ü".encode()],
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
    )

    assert b"the encoding of its locale is ascii. Set LC_ALL to a UTF-8 locale" in ended.stderr
    with pytest.raises(OptionInvalid, match="half of a character"):
        arguments.tag("\ud800")
