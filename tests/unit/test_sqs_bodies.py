"""Attributes: which a receiver asks for, and that to look at what is sent is cheap."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.server.sqs.bodies import OWN_PREFIXES, Wanted, headers_of
from cassieq_spark.server.sqs.call import NO_TEXT, SqsError, is_text
from cassieq_spark.server.sqs.protocol import Typed

NAMES = st.text("ab.*", min_size=1, max_size=5) | st.sampled_from(["All", "cassieq-a", "sqs.b"])


def means(asked: str, name: str) -> bool:
    """What one name that is asked for means."""
    if asked in ("All", ".*", "*"):
        return not name.startswith(OWN_PREFIXES)
    return asked == name or (asked.endswith(".*") and name.startswith(asked[:-2]))


@given(asked=st.lists(NAMES, max_size=6), name=NAMES)
def test_an_attribute_is_wanted_if_one_of_the_names_means_it(asked: list[str], name: str) -> None:
    assert any(means(one, name) for one in asked) == Wanted(asked).has(name)


class Watched(str):
    """A name that counts what is done with it."""

    __slots__ = ("done",)
    done: Counter[str]

    def __hash__(self) -> int:
        self.done["hash"] += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.done["eq"] += 1
        return super().__eq__(other)

    def __getitem__(self, at: Any) -> str:
        self.done["part"] += 1
        return super().__getitem__(at)

    def startswith(self, *given: Any) -> bool:
        self.done["startswith"] += 1
        return super().startswith(*given)


@pytest.mark.parametrize("one", ["name-{}", "pre{:05}.*"])
def test_a_name_is_looked_up_however_many_are_asked_for(one: str) -> None:
    done = {}
    for many in (10, 10_000):
        name = Watched("x" * 256)
        name.done = Counter()
        assert not Wanted(one.format(at) for at in range(many)).has(name)
        done[many] = sum(name.done.values())
    assert done[10_000] <= done[10] + 4


@pytest.mark.parametrize(("zeros", "is_taken"), [(511, True), (512, False)])
def test_a_number_has_no_more_characters_than_any_needs(zeros: int, is_taken: bool) -> None:
    typed = Typed(data_type="Number", text=" " * 1_000 + "0" * zeros + "1")

    with nullcontext() if is_taken else pytest.raises(SqsError):
        headers_of({"a": typed}, {})


def test_text_is_what_has_no_character_that_sqs_refuses() -> None:
    assert is_text("".join(map(chr, range(sys.maxunicode + 1)))) is False
    for at in range(sys.maxunicode + 1):
        text = f"a{chr(at)}b"
        if is_text(text) != (NO_TEXT.search(text) is None):
            pytest.fail(f"U+{at:04X}")
