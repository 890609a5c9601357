"""What came out of a queue is compared with what went in."""

from __future__ import annotations

from array import array

import pytest

pytest.importorskip("bench", reason="the benchmarks are not in a source distribution")
from bench.bodies import Bodies, difference


@pytest.mark.parametrize("size", [96, 1_024, 102_400])
def test_a_body_tells_its_number_and_differs_from_its_neighbours(size: int) -> None:
    bodies = Bodies(size, 1)
    numbers = [0, 1, 99, 1 << 40]
    made = [bodies[number] for number in numbers]
    assert {size} == {len(body) for body in made}
    assert numbers == [Bodies(size, 1).number(body) for body in made]
    assert len({body[8:] for body in made[:3]}) == 3


def test_a_body_with_one_wrong_byte_is_none_that_was_put() -> None:
    bodies = Bodies(96, 1)
    spoilt = bytearray(bodies[7])
    spoilt[50] ^= 1
    for body in (bytes(spoilt), bodies[7][:-1], b"", Bodies(96, 2)[7]):
        with pytest.raises(ValueError, match="never put"):
            bodies.number(body)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([3, 1, 2], None),
        ([1, 2], "1 did not come out, 0 did twice, 0 others"),
        ([1, 2, 3, 3], "0 did not come out, 1 did twice, 0 others"),
        ([1, 2, 2], "1 did not come out, 1 did twice, 0 others"),
        ([1, 2, 3, 4], "0 did not come out, 0 did twice, 1 others"),
    ],
)
def test_what_is_lost_twice_or_unknown_is_told(got: list[int], says: str | None) -> None:
    found = difference(array("q", [1, 2, 3]), array("q", got))
    assert found == (None if says is None else f"3 went in: {says}")
