"""Each rule of the simulated world's own judge can be broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.judge import MAIN, ended, late, renewed, reverted, skipped

ACKS = {
    "at": 4.0,
    "who": "c",
    "what": "acks",
    "op": "1",
    "queue": MAIN,
    "named": [("m", "lane:0", 1)],
}
ACKED = {"at": 5.0, "who": "c", "what": "acked", "op": "1", "verdicts": ["lease_expired"]}
UPDATED = {
    "at": 4.0,
    "who": "c",
    "what": "updated",
    "queue": MAIN,
    "named": ACKS["named"],
    "again": 1,
}
RENEWED = {
    "at": 4.1,
    "who": "source run 1",
    "what": "renewed",
    "begun": 4.0,
    "hold": 4.0,
    "queue": MAIN,
    "named": [("lane:0", 1)],
}


def got(count: int, begun: float = 1.0, **fields: Any) -> dict[str, Any]:
    named = [("m", "lane:0", count)]
    about = {"queue": MAIN, "hold": 1.0, "named": named, "again": [0], "left": 1.0}
    return {"at": begun + 1, "who": "c", "what": "got", "begun": begun, **about, **fields}


def other(what: str, at: float = 3.0) -> dict[str, Any]:
    return {"at": at, "who": "somebody", "what": what}


@pytest.mark.parametrize(
    ("judge", "wrong", "right"),
    [
        (ended, [got(1, left=-2.0)], [got(1, left=-0.5)]),
        (late, [got(1), ACKS, ACKED], [got(1), got(2, 3.0), ACKS, ACKED]),
        (skipped, [got(2)], [got(1), got(2, 3.0)]),
        (skipped, [other("uncounted", 0.5), got(2)], [got(2), other("uncounted")]),
        (renewed, [RENEWED, got(2, 6.0)], [RENEWED, got(2, 7.5)]),
        (renewed, [RENEWED, got(2, 6.0)], [RENEWED, other("uncounted", 5.0), got(2, 6.0)]),
        (renewed, [RENEWED, got(2, 6.0)], [got(1), RENEWED]),
        (reverted, [got(1), UPDATED, got(2, 5.0)], [got(1), UPDATED, got(2, 5.0, again=[1])]),
    ],
)
def test_what_is_wrong_is_told(judge: Any, wrong: list[Any], right: list[Any]) -> None:
    assert len(judge(wrong)) == 1
    assert judge(right) == []


@pytest.mark.parametrize("judge", [late, skipped])
def test_a_client_that_died_may_have_had_it(judge: Any) -> None:
    assert judge([got(2), other("died"), ACKS, ACKED]) == []
