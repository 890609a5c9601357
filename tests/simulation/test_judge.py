"""Each rule of the simulated world's own judge can be broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.judge import (
    MAIN,
    doubtful,
    ended,
    late,
    longer,
    outlived,
    renewed,
    replayed,
    reverted,
    skipped,
    vanished,
)

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


def put(**fields: Any) -> list[dict[str, Any]]:
    puts = {"keys": ["m"], "delay": 0, "ttl": None}
    begun = {"at": 1.0, "who": "p", "what": "puts", "op": "1", **puts}
    ended = {"at": 1.5, "who": "p", "what": "put", "op": "1", "stored": [], "unknown": ["m"]}
    return [begun, {**ended, **fields}]


def life(what: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"at": at, "who": "c", "what": what, "life": b"1"} | fields


def batch(run: str, keys: str, at: float) -> list[dict[str, Any]]:
    about = {"who": "s", "stream": "s", "seq": 1, "run": run}
    named = [(key, f"lane:{key}", 1) for key in keys]
    return [
        {"at": at, "what": "leased", "begun": at, "hold": 4.0, **about},
        {"at": at, "what": "rows", "batch": 0, "queue": MAIN, "named": named, **about},
    ]


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
        (doubtful, put(answered=True), put(answered=False)),
        (doubtful, put(answered=True), put(answered=True, at=9.0)),
        (longer, [got(1, most=90.0)], [got(1, most=9.0)]),
        (
            outlived,
            [life("life ended", 2.0), life("lived", 3.0, begun=2.5)],
            [life("life ended", 2.0), life("lived", 3.0, begun=1.5)],
        ),
        (
            vanished,
            [life("life", 1.0), life("life", 2.0, life=b"2")],
            [life("life", 1.0), life("life ends", 1.5), life("life", 2.0, life=b"2")],
        ),
        (
            replayed,
            [*batch("a", "xy", 1.0), *batch("b", "x", 3.0)],
            [*batch("a", "xy", 1.0), *batch("b", "x", 9.0)],
        ),
        (reverted, [got(1), UPDATED, got(2, 5.0)], [got(1), UPDATED, got(2, 5.0, again=[1])]),
    ],
)
def test_what_is_wrong_is_told(judge: Any, wrong: list[Any], right: list[Any]) -> None:
    assert len(judge(wrong)) == 1
    assert judge(right) == []


@pytest.mark.parametrize("judge", [late, skipped])
@pytest.mark.parametrize("what", ["died", "slept"])
def test_a_client_that_died_or_slept_may_have_had_it(judge: Any, what: str) -> None:
    assert judge([got(2), other(what), ACKS, ACKED]) == []
