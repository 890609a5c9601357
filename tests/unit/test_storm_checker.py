"""The judge of storms refuses a history that must not be, and lets pass what a fault explains."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storm.checker import KINDS, check, count, told

Q, DEAD = "q", "q.dead"
Line = tuple[float, str, str, dict[str, Any]]


def history(*lines: Line) -> list[dict[str, Any]]:
    """(at, who, what, fields) each."""
    return [{"at": at, "who": who, "what": what, **fields} for at, who, what, fields in lines]


def put(
    at: float,
    key: str,
    *,
    delay: int = 0,
    ttl: int | None = None,
    says: str | None = "stored",
    shared: bool = False,
) -> list[Line]:
    """A put of one message; ``says`` None: nobody knows."""
    op = f"put.{key}.{at}"
    fields = {"op": op, "keys": [key], "delay": delay, "ttl": ttl, "shared": shared}
    lines: list[Line] = [(at, "p", "puts", fields)]
    if says is not None:
        ends: dict[str, Any] = {"op": op, "stored": [], "unknown": []}
        if says != "refused":
            ends[says] = [key]
        lines.append((at + 0.1, "p", "put", ends))
    return lines


def got(
    at: float,
    key: str,
    n: int = 1,
    *,
    who: str = "a",
    id_: int = 7,
    hold: float = 3,
    queue: str = Q,
) -> Line:
    """A get that began half a second before it returned."""
    named = [[key, id_, n]]
    return (at, who, "got", {"begun": at - 0.5, "queue": queue, "hold": hold, "named": named})


def scheduling(at: float) -> Line:
    """Each second row of a sink is due 130 s later."""
    return (at, "driver", "scheduling", {"sink": "k", "each": 2, "delay": 130})


def calm(at: float, classes: dict[str, int], in_order: list[str]) -> Line:
    return (at, "runner", "calm", {"classes": classes, "got": in_order})


def ack(
    at: float, key: str, n: int = 1, *, says: str | None = "acked", id_: int = 7, queue: str = Q
) -> list[Line]:
    """An ack of one delivery; ``says`` None: it was not answered."""
    op = f"ack.{queue}.{id_}.{n}.{at}"
    lines: list[Line] = [(at, "a", "acks", {"op": op, "queue": queue, "named": [[key, id_, n]]})]
    if says is not None:
        lines.append((at + 0.1, "a", "acked", {"op": op, "verdicts": [says]}))
    return lines


def extend(at: float, key: str, hold: float, *, is_heard: bool = True) -> list[Line]:
    op = f"extend.{key}.{at}"
    fields = {"op": op, "queue": Q, "named": [[key, 7, 1]], "hold": hold}
    lines: list[Line] = [(at, "a", "extends", fields)]
    return [*lines, (at + 0.1, "a", "extended", {"op": op})] if is_heard else lines


def cancel(at: float, key: str, *, says: bool | None = True) -> list[Line]:
    """A cancel; ``says`` None: it was not answered."""
    lines: list[Line] = [(at, "a", "cancels", {"op": f"cancel.{key}", "key": key})]
    if says is not None:
        lines.append((at + 0.1, "a", "cancelled", {"op": "", "key": key, "done": says}))
    return lines


def far(at: float, key: str) -> list[Line]:
    """A put into a due lane."""
    (first, who, what, fields), *rest = put(at, key, delay=130)
    return [(first, who, what, {**fields, "far": True}), *rest]


def gives(at: float, key: str, n: int = 1) -> Line:
    return (at, "a", "gives", {"queue": Q, "named": [[key, 7, n]]})


def leased(at: float, hold: float = 3) -> Line:
    return (at, "planner", "leased", {"begun": at, "stream": "s", "seq": 1, "hold": hold})


def rows(at: float, *keys: str, run: str = "r1", first_id: int = 7) -> Line:
    """Of batch 0, whose offset has number 1."""
    named = [[key, first_id + at_, 1] for at_, key in enumerate(keys)]
    fields = {"stream": "s", "batch": 0, "seq": 1, "run": run, "queue": Q, "named": named}
    return (at, "driver", "rows", fields)


def done(at: float, *, run: str = "r1") -> Line:
    return (at, "driver", "done", {"stream": "s", "batch": 0, "run": run})


def settled(at: float, seq: int) -> Line:
    return (at, "planner", "settled", {"stream": "s", "seq": seq})


def sink(batches: list[int], size: int = 2) -> Line:
    return (99, "runner", "committed", {"sink": "k", "batches": batches, "rows": size})


def sink_rows(*numbers: int) -> list[Line]:
    """Rows of sink ``k``, got and acked: row n is at id n."""
    lines: list[Line] = []
    for number in numbers:
        lines.append(got(10, f"k:{number}", id_=number))
        lines += ack(11, f"k:{number}", id_=number)
    return lines


PUT, GOT, ACKED = put(0, "m"), got(2, "m"), ack(3, "m")
"""What most histories begin with."""

CLEAN: dict[str, list[Line]] = {
    "put, got, acked": [*PUT, GOT, *ACKED],
    "put unheard, never seen": put(0, "m", says=None),
    "put ambiguous, seen": [*put(0, "m", says="unknown"), GOT, *ACKED],
    "put refused, never seen": put(0, "m", says="refused"),
    "a shared key is refused to one": [
        *put(0, "m", shared=True, says="refused"),
        *put(0.5, "m", shared=True),
        *put(0.7, "m", shared=True),
        GOT,
        *ACKED,
    ],
    "ack unanswered, gone": [*PUT, GOT, *ack(3, "m", says=None)],
    "ack unanswered, back": [*PUT, GOT, *ack(3, "m", says=None), got(6, "m", 2), *ack(7, "m", 2)],
    "stale, and acked by the next": [
        *PUT,
        GOT,
        got(6, "m", 2, who="b"),
        *ack(6.5, "m", says="stale"),
        *ack(7, "m", 2),
    ],
    "forgotten, back after its lease": [*PUT, GOT, got(4.6, "m", 2), *ack(5, "m", 2)],
    "given back, got at once": [*PUT, GOT, gives(2.1, "m"), got(2.2, "m", 2), *ack(3, "m", 2)],
    "shortened, not known whether": [
        *PUT,
        got(2, "m", hold=60),
        *extend(3, "m", 1, is_heard=False),
        got(5, "m", 2),
        *ack(6, "m", 2),
    ],
    "a delivery that nobody saw": [*PUT, GOT, got(9, "m", 3), *ack(10, "m", 3)],
    "dead, and acked as a letter": [
        *PUT,
        GOT,
        got(9, "m", queue=DEAD, id_=1),
        *ack(10, "m", queue=DEAD, id_=1),
    ],
    "expired and never seen": [*put(0, "m", ttl=5), *put(0, "n"), got(6, "n"), *ack(7, "n")],
    "got in the last minute": [*put(0, "m", ttl=5), got(60, "m"), *ack(99, "m")],
    "expired in the dead letters": [
        *put(0, "m", ttl=5),
        got(200, "m", queue=DEAD),
        *ack(201, "m", queue=DEAD),
    ],
    "delayed": [*put(0, "m", delay=3), got(3.5, "m"), *ack(4, "m")],
    "cancelled": [*PUT, *cancel(1, "m")],
    "cancelled, unheard": [*PUT, *cancel(1, "m", says=None)],
    "cancelled too late": [*PUT, GOT, *cancel(1, "m", says=False), *ACKED],
    "put for much later, and got by a clock that is ahead": [
        *far(0, "m"),
        got(9, "m", who="runner"),
        *ack(10, "m"),
    ],
    "a batch, replayed after a kill": [
        *PUT,
        leased(1),
        rows(2, "m"),
        leased(8),
        rows(9, "m", run="r2"),
        done(9.5, run="r2"),
        settled(10, 1),
    ],
    "a batch was acked late, and one of its rows is back": [
        *PUT,
        leased(1),
        rows(2, "m"),
        done(2.1),
        (2.9, "planner", "late", {"stream": "s", "queue": Q, "bucket": 0}),
        settled(3, 1),
        got(9, "m", 2),
        *ack(10, "m", 2),
    ],
    "a replay that has lost a lease": [
        *PUT,
        *put(0, "n"),
        leased(1),
        rows(2, "m", "n"),
        got(6, "n", 2, id_=8),
        *ack(6.1, "n", 2, id_=8),
        leased(8),
        rows(9, "m", run="r2"),
        done(9.5, run="r2"),
    ],
    "a sink's batches, the last one not in the log": [*sink_rows(0, 1, 2, 3), sink([0])],
    "a sink's batch that never was": [*sink_rows(0, 1), sink([0])],
    "a sink's row by a clock that is ahead": [
        scheduling(0),
        *sink_rows(1),
        got(12, "k:0", id_=0, who="runner"),
        *ack(13, "k:0", id_=0),
        sink([0]),
    ],
    "the highest class first": [calm(1, {"low": 0, "high": 1, "also": 1}, ["high", "also", "low"])],
}


@pytest.mark.parametrize("case", CLEAN)
def test_a_history_in_which_all_promises_hold_is_found_clean(case: str) -> None:
    assert [] == check(sorted_by_time(CLEAN[case]), dead_letters=DEAD)


RED: dict[str, tuple[str, list[Line]]] = {
    "never seen": ("lost", PUT),
    "seen, never acked": ("lost", [*PUT, GOT]),
    "only a stale ack": ("lost", [*PUT, GOT, *ack(3, "m", says="stale")]),
    "said to be acked before, and nobody did": (
        "lost",
        [*PUT, GOT, *ack(3, "m", says="already_acked")],
    ),
    "in a batch whose call never returned": ("lost", [*PUT, leased(1), rows(2, "m")]),
    "a row of a committed batch": (
        "lost",
        [got(1, "k:0", id_=0), *ack(2, "k:0", id_=0), sink([0])],
    ),
    "acked and seen again": ("resurrected", [*PUT, GOT, *ACKED, got(9, "m", 2), *ack(10, "m", 2)]),
    "acked and a dead letter": (
        "resurrected",
        [*PUT, GOT, *ACKED, got(9, "m", queue=DEAD, id_=1), *ack(10, "m", queue=DEAD, id_=1)],
    ),
    "a batch was acked, and one of its rows is back": (
        "resurrected",
        [*PUT, leased(1), rows(2, "m"), done(2.1), settled(3, 1), got(9, "m", 2), *ack(10, "m", 2)],
    ),
    "a batch was acked late elsewhere, and one of its rows is back": (
        "resurrected",
        [
            *PUT,
            leased(1),
            rows(2, "m"),
            done(2.1),
            (2.9, "planner", "late", {"stream": "s", "queue": Q, "bucket": 1}),
            settled(3, 1),
            got(9, "m", 2),
            *ack(10, "m", 2),
        ],
    ),
    "cancelled and delivered": ("resurrected", [*PUT, *cancel(1, "m"), GOT, *ACKED]),
    "too late to cancel, and nobody has it": ("lost", [*PUT, *cancel(1, "m", says=False)]),
    "put for much later, and got at once": (
        "unexpected",
        [*far(0, "m"), got(9, "m"), *ack(10, "m")],
    ),
    "the same delivery twice": ("two_leases", [*PUT, GOT, got(9, "m", who="b"), *ack(10, "m")]),
    "the next one too early": (
        "two_leases",
        [*PUT, GOT, got(4.4, "m", 2, who="b"), *ack(5, "m", 2)],
    ),
    "an extended one taken": (
        "two_leases",
        [*PUT, GOT, *extend(3, "m", 60), got(9, "m", 2), *ack(10, "m", 2)],
    ),
    "from under a batch": (
        "two_leases",
        [*PUT, leased(1), rows(2, "m"), got(3.9, "m", 2), *ack(5, "m", 2)],
    ),
    "a batch took what a consumer held": (
        "two_leases",
        [*PUT, got(2, "m", 1, hold=60), leased(4), rows(5, "m"), done(6)],
    ),
    "a torn batch": ("batch", [*sink_rows(0, 1, 2), sink([0])]),
    "a batch that is there twice": (
        "batch",
        [*sink_rows(0, 1), got(20, "k:0", id_=5), *ack(21, "k:0", id_=5), sink([0])],
    ),
    "a replay with another row": (
        "batch",
        [
            *PUT,
            *put(0, "n"),
            leased(1),
            rows(2, "m"),
            leased(8),
            rows(9, "m", "n", run="r2"),
            done(9.5, run="r2"),
        ],
    ),
    "another body under the same id": (
        "batch",
        [*PUT, *put(0, "n"), leased(1), rows(2, "m"), done(2.1), rows(3, "n"), done(3.1)],
    ),
    "fewer rows within a run": (
        "batch",
        [*PUT, *put(0, "n"), leased(1), rows(2, "m", "n"), done(3), rows(4, "m"), done(5)],
    ),
    "nobody put it": ("unexpected", [GOT, *ACKED]),
    "refused and there": ("unexpected", [*put(0, "m", says="refused"), GOT, *ACKED]),
    "stored twice": ("unexpected", [*PUT, GOT, *ACKED, got(2, "m", id_=8), *ack(3, "m", id_=8)]),
    "a key of two producers is stored twice": (
        "unexpected",
        [
            *put(0, "m", shared=True),
            *put(0.5, "m", shared=True),
            GOT,
            *ACKED,
            got(2, "m", id_=8),
            *ack(3, "m", id_=8),
        ],
    ),
    "before its delay is over": ("unexpected", [*put(0, "m", delay=3), got(2.9, "m"), *ACKED]),
    "after its time to live": (
        "expired",
        [*put(0, "m", delay=3, ttl=5), got(145, "m"), *ack(146, "m")],
    ),
    "lost before its time to live is over": (
        "lost",
        [*put(0, "m", ttl=50), *put(0, "n"), got(6, "n"), *ack(7, "n")],
    ),
    "a sink's row before it is due": ("unexpected", [scheduling(0), *sink_rows(0, 1), sink([0])]),
    "a low class came first": ("order", [calm(1, {"low": 0, "high": 1}, ["low", "high"])]),
    "back from the dead": (
        "unexpected",
        [
            *PUT,
            GOT,
            got(5, "m", queue=DEAD, id_=1),
            *ack(5.5, "m", queue=DEAD, id_=1),
            got(9, "m", 2),
            *ack(10, "m", 2, says="stale"),
        ],
    ),
}


@pytest.mark.parametrize("case", RED)
def test_a_history_that_must_not_be_is_refused_and_named(case: str) -> None:
    kind, lines = RED[case]
    found = check(sorted_by_time(lines), dead_letters=DEAD)
    assert {kind} <= {anomaly.kind for anomaly in found}, found
    assert set(told(found)) == set(KINDS)


def sorted_by_time(lines: list[Line]) -> list[dict[str, Any]]:
    return sorted(history(*lines), key=lambda entry: entry["at"])


def test_what_there_was_is_counted() -> None:
    lines = [
        *PUT,
        *put(0, "n", says="unknown"),
        GOT,
        *ACKED,
        leased(4),
        rows(5, "n", first_id=8),
        rows(6, "n", first_id=8),
        sink([0, 1]),
    ]
    assert {
        "puts": 1,
        "ambiguous": 1,
        "deliveries": 3,
        "acks": 1,
        "source batches": 1,
        "replays": 1,
        "sink batches": 2,
        "rows": 4,
    } == dict(count(history(*lines)))
