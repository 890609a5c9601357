"""Randomness: seeded where a test needs it, and different in every forked worker."""

from __future__ import annotations

import os
from uuid import RFC_4122

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.entropy import MAX_DOUBLINGS, Entropy, generator, new_uuid, system


def test_uuids_are_random_and_never_tell_the_machine() -> None:
    found = {new_uuid() for _ in range(1000)}

    assert 1000 == len(found)
    assert {4} == {one.version for one in found}


@given(st.integers(0, 9_999_999_999_999_999))
def test_a_uuid_with_a_time_is_a_random_one_of_version_7(time_us: int) -> None:
    found = {system.uuid_at(time_us) for _ in range(10)}

    assert 10 == len(found)
    assert {(7, RFC_4122)} == {(one.version, one.variant) for one in found}
    assert {time_us // 1_000} == {one.int >> 80 for one in found}


def test_a_seed_gives_the_same_numbers_again() -> None:
    assert [generator(7).random() for _ in range(3)] == [generator(7).random() for _ in range(3)]
    assert generator(7).random() != generator(8).random()


def test_without_a_seed_numbers_differ() -> None:
    assert generator().random() != generator().random()


@given(base_s=st.floats(0.001, 10), attempt=st.integers(0, 10_000), seed=st.integers(0, 2**32 - 1))
def test_a_pause_is_a_quarter_to_all_of_the_doubled_base_and_has_a_limit(
    base_s: float, attempt: int, seed: int
) -> None:
    most = base_s * 2 ** min(attempt, MAX_DOUBLINGS)

    assert most / 4 <= Entropy(generator(seed)).jitter(base_s, attempt) <= most


def test_pauses_spread() -> None:
    assert 1 < len({system.jitter(1.0, 0) for _ in range(10)})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_forked_workers_do_not_pause_alike() -> None:
    drawn = {_in_a_fork(lambda: system.jitter(1.0, 0)) for _ in range(3)}

    assert 3 == len(drawn)


def _in_a_fork(draw) -> str:  # type: ignore[no-untyped-def]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(draw()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    assert (child, 0) == os.waitpid(child, 0)
    return text
