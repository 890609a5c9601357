"""`RowWriter` with others at its row, lost answers, and callers that leave: every interleaving.

Each negative control takes one rule away, and the search must find what it was for.

    pytest tests/explicit/test_row_worlds.py -m ''          the larger worlds, too
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model import outcome
from cassieq_spark.model.bucket import (
    Bucket,
    IllegalMove,
    Lease,
    Status,
    purged,
    with_closed_sets,
)
from cassieq_spark.model.ids import Runs
from cassieq_spark.model.lease import Terms
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.rows import intents, waiting, writer
from cassieq_spark.model.rows.events import Answer, Fate, fate_of
from cassieq_spark.model.rows.intents import (
    ACK,
    Ask,
    Cancel,
    Change,
    Claim,
    Intent,
    Moment,
    Purge,
    Settle,
    Turn,
)
from cassieq_spark.model.rows.waiting import Entry, Hints
from cassieq_spark.model.rows.writer import RowWriter
from cassieq_spark.model.settlement import Action, Extend, Reject, Release
from tests.explicit.explore import Explored, explore
from tests.explicit.rows import SECOND_US, START_US, Plan, RowWorld, State

LIMIT = 120_000
"""A larger world that is not exhausted by then has broken nothing so far, nearest states first."""
VISIBILITY_US = 25 * SECOND_US

pytestmark = [pytest.mark.invariant(one) for one in ("I1", "I2", "I3", "I4")]

THREE = Runs.span(0, 2)
MINUTES = frozenset(range(minute_of(START_US), minute_of(START_US) + 5))
"""Hints that are written already: most worlds are not about them."""


def sealed(**parts: Any) -> Bucket:
    values = {"status": Status.SEALED, "changed_us": START_US, "manifest": THREE, **parts}
    return Bucket(**values)


def leased(number: int, runs: Runs, ends_s: float = 1_000) -> Lease:
    return Lease(
        lease_id=UUID(int=number),
        owner="h",
        run=None,
        delivery_count=1,
        runs=runs,
        until_us=START_US + round(ends_s * SECOND_US),
    )


def at(*offsets: int) -> Runs:
    return Runs.from_offsets(offsets)


def claim(at_most: int = 1, owner: str = "a") -> Claim:
    return Claim(at_most=at_most, owner=owner, visibility_us=VISIBILITY_US)


def does(action: Action, number: int, *offsets: int) -> Settle:
    return Settle(asks=(Ask(UUID(int=number), action, at(*offsets) if offsets else None),))


def close_sets(row: Bucket, now_us: int, _: Callable[[], UUID]) -> Bucket:
    return with_closed_sets(row, now_us=now_us)


def others_claim(row: Bucket, now_us: int) -> Bucket:
    """An older client takes one message, under the lease 9."""
    terms = Terms(at_most=1, owner="o", run=None, now_us=now_us, until_us=now_us + 10**9)
    return lease_rules.claim(row, terms, lambda: UUID(int=9))[0]


def others_extend(row: Bucket, now_us: int) -> Bucket:
    return replace(row, changed_us=now_us)


def others_purge(row: Bucket, now_us: int) -> Bucket:
    return purged(row, now_us=now_us)


def others_drop(_row: Bucket, _now_us: int) -> None:
    return None


def as_it_was(row: Bucket, _: int) -> Bucket:
    return row


FRESH = sealed(fresh=THREE)
HELD = sealed(leases=(leased(7, at(0, 1)),), fresh=at(2))
DELAY = Release(due_us=START_US + 90 * SECOND_US)
LONGER = Extend(visibility_us=VISIBILITY_US)

WORLDS: dict[str, RowWorld] = {
    "two claim at once, a third elsewhere": RowWorld(
        row=FRESH,
        plans=((Plan(claim()), Plan(claim(2))), (Plan(claim()),)),
        hinted=MINUTES,
    ),
    "three clients": RowWorld(
        row=HELD,
        plans=((Plan(claim()),), (Plan(does(ACK, 7, 0)),), (Plan(does(Release(), 7, 1)),)),
        hinted=MINUTES,
    ),
    "three share, one leaves": RowWorld(
        row=FRESH,
        plans=((Plan(claim(3, "b")), Plan(claim(), leaves=True), Plan(claim())),),
        foreign=(others_extend,),
        hinted=MINUTES,
    ),
    "sharers leave": RowWorld(
        row=FRESH,
        plans=((Plan(Turn()), Plan(claim(), leaves=True), Plan(claim())),),
        hinted=MINUTES,
    ),
    "acks ride on a claim": RowWorld(
        row=HELD,
        plans=(
            (Plan(does(ACK, 7, 0), company_s=0.1), Plan(claim(), within_s=20)),
            (Plan(does(ACK, 7, 1)),),
        ),
        times_s=(0.0, 0.1),
        hinted=MINUTES,
    ),
    "actions on one message": RowWorld(
        row=HELD,
        plans=(
            (
                Plan(Turn()),
                Plan(does(LONGER, 7, 0)),
                Plan(does(ACK, 7, 0)),
                Plan(does(ACK, 7, 0)),
                Plan(does(Release(), 7, 1)),
                Plan(does(ACK, 7, 1)),
                Plan(claim()),
            ),
        ),
        hinted=MINUTES,
    ),
    "whole leases, cancel and purge": RowWorld(
        row=HELD,
        plans=(
            (Plan(Turn()), Plan(Cancel(runs=at(2))), Plan(does(Release(), 7)), Plan(claim(3))),
            (Plan(Purge()),),
        ),
        hinted=MINUTES,
    ),
    "what ran out is its holder's until it is claimed": RowWorld(
        row=sealed(leases=(leased(7, at(0), -60),)),
        plans=((Plan(Turn()), Plan(claim()), Plan(does(ACK, 7, 0))), (Plan(claim()),)),
        hinted=MINUTES,
    ),
    "a move that the row does not allow": RowWorld(
        row=sealed(leases=(leased(7, THREE),)),
        plans=((Plan(Turn()), Plan(does(ACK, 7, 0, 1, 2)), Plan(Change(change=close_sets))),),
        hinted=MINUTES,
    ),
    "claims are lost": RowWorld(
        row=FRESH,
        plans=((Plan(claim()), Plan(claim())), (Plan(claim()),)),
        lost=1,
        hinted=MINUTES,
    ),
    "who gave up comes again": RowWorld(
        row=FRESH,
        plans=((Plan(claim(), within_s=5), Plan(claim())),),
        times_s=(0.0, 6.0),
        slow_hints=False,
        lost=1,
        hinted=MINUTES,
    ),
    "callers with little time": RowWorld(
        row=HELD,
        plans=(
            (
                Plan(claim(), within_s=5),
                Plan(does(ACK, 7, 0), within_s=5),
                Plan(does(ACK, 7, 1), within_s=20),
            ),
        ),
        times_s=(0.0, 6.0),
        foreign=(others_extend,),
        hinted=MINUTES,
    ),
    "tags are evicted": RowWorld(
        row=HELD,
        plans=((Plan(does(Release(), 7, 0)), Plan(claim())),),
        foreign=(others_claim, others_extend),
        lost=1,
        hinted=MINUTES,
    ),
    "a delivery by another client is settled here": RowWorld(
        row=FRESH,
        plans=(
            (
                Plan(claim()),
                Plan(does(ACK, 9, 1), after=1),
                Plan(does(ACK, 9, 0), after=1),
                Plan(claim(), looks=True),
            ),
        ),
        foreign=(others_claim,),
        slow_reads=True,
        hinted=MINUTES,
    ),
    "others change the row again and again": RowWorld(
        row=HELD,
        plans=((Plan(does(ACK, 7, 0)), Plan(does(ACK, 7, 1))),),
        foreign=(others_extend, others_extend, others_extend),
        hinted=MINUTES,
    ),
    "no row": RowWorld(
        row=None,
        plans=((Plan(claim()), Plan(does(ACK, 7, 0)), Plan(Cancel(runs=at(0))), Plan(Purge())),),
    ),
    "the bucket is dropped, and its ghost comes back": RowWorld(
        row=HELD,
        plans=((Plan(does(ACK, 7, 0)), Plan(claim()), Plan(does(ACK, 8, 2))),),
        foreign=(others_purge, others_drop, as_it_was),
        hinted=MINUTES,
    ),
    "a ghost is claimed from": RowWorld(
        row=FRESH,
        plans=((Plan(claim(), after=3),),),
        foreign=(others_purge, others_drop, as_it_was),
        hinted=MINUTES,
    ),
    "a claim is heard after its end": RowWorld(
        row=sealed(fresh=at(0)),
        plans=((Plan(claim()),),),
        foreign=(others_claim,),
        times_s=(0.0, 30.0),
        lost=1,
        hinted=MINUTES,
    ),
    "hints are slow": RowWorld(
        row=HELD,
        plans=(
            (
                Plan(does(DELAY, 7, 0)),
                Plan(does(Reject(reason="r"), 7, 0)),
                Plan(does(ACK, 7, 1)),
                Plan(claim()),
            ),
        ),
        times_s=(0.0, 1.5, 12.0),
    ),
    "a settlement is lost": RowWorld(
        row=HELD,
        plans=((Plan(does(Release(), 7, 0)), Plan(does(ACK, 7, 1))), (Plan(claim()),)),
        lost=1,
        hinted=MINUTES,
    ),
    "time passes": RowWorld(
        row=HELD,
        plans=((Plan(does(LONGER, 7, 0)), Plan(claim())),),
        times_s=(0.0, 30.0, 130.0),
        hinted=MINUTES,
    ),
    "an answer comes late": RowWorld(
        row=HELD,
        plans=((Plan(claim()), Plan(does(DELAY, 7, 0))),),
        times_s=(0.0, 130.0),
        slow_hints=False,
    ),
}

DEEP: dict[str, RowWorld] = {
    "two settlements and a claim, two lost": RowWorld(
        row=HELD,
        plans=((Plan(does(Release(), 7, 0)), Plan(does(ACK, 7, 1))), (Plan(claim(2)),)),
        lost=2,
        hinted=MINUTES,
    ),
    "two extend and claim, time passes": RowWorld(
        row=HELD,
        plans=((Plan(does(LONGER, 7, 0)), Plan(claim())), (Plan(claim(1, "b")),)),
        times_s=(0.0, 30.0, 130.0),
        hinted=MINUTES,
    ),
    "a caller leaves, an answer is lost": RowWorld(
        row=HELD,
        plans=(
            (Plan(claim(2), leaves=True), Plan(claim())),
            (Plan(does(Release(), 7, 1)),),
        ),
        lost=1,
        hinted=MINUTES,
    ),
    "two evict each other": RowWorld(
        row=HELD,
        plans=(
            (Plan(does(Release(), 7, 0)), Plan(claim())),
            (Plan(does(ACK, 7, 1)),),
        ),
        lost=2,
        hinted=MINUTES,
    ),
    "hints are slow, an answer is lost": RowWorld(
        row=HELD,
        plans=((Plan(does(DELAY, 7, 0)), Plan(does(ACK, 7, 1)), Plan(claim())),),
        times_s=(0.0, 1.5, 12.0),
        foreign=(others_extend,),
        lost=1,
    ),
    "little time, an answer is lost": RowWorld(
        row=HELD,
        plans=(
            (Plan(claim(), within_s=5), Plan(does(Release(), 7, 0), within_s=20), Plan(claim())),
            (Plan(claim()),),
        ),
        times_s=(0.0, 6.0),
        lost=1,
        slow_hints=False,
        hinted=MINUTES,
    ),
}

SMALL_ROWS = {"PREFERRED_LEASES": 1, "RUNS_PER_LEASE": 1, "LEASES_PER_CLAIM": 2}
LIMITED = RowWorld(
    row=sealed(
        manifest=Runs.span(0, 8),
        fresh=at(0, 2, 4),
        leases=(leased(7, at(6), -60), leased(8, at(8), -60)),
    ),
    plans=(
        (Plan(Turn()), Plan(claim(2)), Plan(claim(2)), Plan(does(ACK, 8, 8))),
        (Plan(claim(1, "b")),),
    ),
    hinted=MINUTES,
)
EVICTS = {"tags are evicted", "two evict each other"}


def search(world: RowWorld) -> Explored[State]:
    explored = explore(world, limit=LIMIT)
    print(explored)
    return explored


@pytest.fixture
def few_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "TAGGED_CLIENTS", 1)


@pytest.mark.parametrize("name", WORLDS)
def test_every_caller_is_told_what_has_become_of_its_intent(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name in EVICTS:
        request.getfixturevalue("few_tags")
    explored = search(WORLDS[name])
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", DEEP)
def test_every_caller_is_told_the_same_in_larger_worlds(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name in EVICTS:
        request.getfixturevalue("few_tags")
    explored = search(DEEP[name])
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete or explored.states >= LIMIT


def test_a_row_at_its_limits_gives_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in SMALL_ROWS.items():
        monkeypatch.setattr(lease_rules, limit, value)
    explored = search(LIMITED)
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete


# --- without a rule -------------------------------------------------------------------------------


def time_of_the_first(_: RowWriter, batch: list[Entry], moment: Moment) -> Moment:
    """Each visibility counts from when the first of them came."""
    came_s = min(one.deadline_s for one in batch) - 1_000
    return replace(moment, now_us=min(moment.now_us, START_US + round(came_s * SECOND_US)))


def whole_leases(leases: Any) -> Settle:
    return Settle(
        asks=tuple(Ask(one.lease_id, Release(count_delivery=False), None) for one in leases)
    )


def counted(leases: Any) -> Settle:
    return Settle(asks=tuple(Ask(one.lease_id, Release(), one.runs) for one in leases))


def raises(intent: Intent, row: Bucket | None, moment: Moment) -> Any:
    return intent.apply(row, moment)  # type: ignore[union-attr]


def as_if(was: Fate, told: Fate) -> Callable[..., Fate]:
    def wrong(*args: Any) -> Fate:
        fate = fate_of(*args)
        return told if fate is was else fate

    return wrong


def ambiguous(self: writer.Callers, entries: Any, error: Exception | None = None) -> None:
    for one in entries:
        self._end(one, writer.End.AMBIGUOUS, error)


def marks_are_proof(
    self: RowWriter, entry: Entry, effect: Any, _fate: Fate, now: Any, _moment: Moment
) -> None:
    self._lost(entry.ticket, effect.before, now)


def without_reads_of_low(**parts: Any) -> Answer:
    return Answer(**{**parts, "reads_low": False})


FOLD = intents.fold


def claims_first(row: Any, wanted: Any, moment: Moment) -> intents.Folded:
    """What ran out is taken before its holder's ack."""
    claims = FOLD(row, [one for one in wanted if isinstance(one[1], Claim)], moment)
    rest = FOLD(claims.row, [one for one in wanted if not isinstance(one[1], Claim)], moment)
    return intents.Folded(row=rest.row, effects=claims.effects | rest.effects)


Patch = tuple[object, str, Any]
SLOW = "hints are slow"
WITHOUT: dict[str, tuple[Patch, str, str]] = {
    "1 time is the intent's": (
        (RowWriter, "time_of_fold", time_of_the_first),
        "time passes",
        "R21: an extension is shorter than was asked",
    ),
    "2 a remembered row gives verdicts": (
        (RowWriter, "unread", lambda *_: False),
        "a delivery by another client is settled here",
        "a delivery that is held is called stale",
    ),
    "2 after a long pause nothing is read": (
        (RowWriter, "must_read", lambda self, *_: not self._is_known),
        "others change the row again and again",
        "a CAS is made from a row of before a long pause",
    ),
    "3 claims first": (
        (intents, "fold", claims_first),
        "what ran out is its holder's until it is claimed",
        "R20: a claim comes before a settlement",
    ),
    "3 all acks are merged": (
        (intents, "may_merge", lambda *_: True),
        "actions on one message",
        "somebody is told something else than one after the other",
    ),
    "3 who leaves gives back whole leases": (
        (writer, "given_back", whole_leases),
        "sharers leave",
        "I2: whoever holds a message has lost it before its lease was over",
    ),
    "4 hints are not waited for": (
        (RowWriter, "short_of_hints", lambda *_: {}),
        SLOW,
        "R12: a CAS is sent before its hint is written",
    ),
    "4 all wait for a hint for ever": (
        (Hints, "patience_s", lambda *_: inf),
        SLOW,
        "I10: an ack waits for another one's hint",
    ),
    "4 what needs no hint overtakes": (
        (waiting, "overlap", lambda *_: False),
        SLOW,
        "an action overtakes an earlier one on the same message",
    ),
    "5 the first deadline ends it": (
        (RowWriter, "limit_of", lambda _, batch: min(one.deadline_s for one in batch)),
        "callers with little time",
        "a CAS is given up before the time of its last caller is over",
    ),
    "5 who leaves takes nothing back": (
        (RowWriter, "_leave", lambda *_: None),
        "three share, one leaves",
        "what was not sent is sent after its caller has left",
    ),
    "5 what a leaver was given stays": (
        (writer.Callers, "_give_back", lambda *_: None),
        "three share, one leaves",
        "what was claimed for a caller that is gone stays leased",
    ),
    "5 it is given back as a delivery": (
        (writer, "given_back", counted),
        "three share, one leaves",
        "P18: a delivery that nobody was handed is counted",
    ),
    "5 what was never sent is ambiguous": (
        (writer.Callers, "_fail_all", ambiguous),
        "callers with little time",
        "what was never sent is called ambiguous",
    ),
    "6 a missing mark proves that it did not happen": (
        (writer, "fate_of", as_if(Fate.OPEN, Fate.REFUSED)),
        "claims are lost",
        "a caller is told that it is lost, and it happened or may yet",
    ),
    "6 the tag is not asked": (
        (writer, "fate_of", as_if(Fate.APPLIED, Fate.REFUSED)),
        "claims are lost",
        "a caller is told that it is lost, and it happened or may yet",
    ),
    "6 a claim is folded again": (
        (Entry, "is_claim", False),
        "claims are lost",
        "a claim is folded twice",
    ),
    "6 evicted tags prove that it did not happen": (
        (RowWriter, "_claim_ended", marks_are_proof),
        "tags are evicted",
        "a caller is told that it is lost, and it happened or may yet",
    ),
    "6 stale, though it took effect": (
        (writer, "is_told", lambda *_: True),
        "tags are evicted",
        "a settlement that took effect is called stale",
    ),
    "6 what a claim has made is told, whatever became of it": (
        (writer, "still_held", lambda _, leases: tuple(leases)),
        "a claim is heard after its end",
        "a claim is told what the row does not hold",
    ),
    "6 nobody looks for a lease that came late": (
        (RowWriter, "_look_for", lambda *_: None),
        "who gave up comes again",
        "what was claimed for a caller that is gone stays leased",
    ),
    "7 a late hint is not written again": (
        (waiting, "came_late", lambda *_, **__: False),
        "an answer comes late",
        "a hint that came late is not written again",
    ),
    "7 nobody reads L": (
        (writer, "Answer", without_reads_of_low),
        "the bucket is dropped, and its ghost comes back",
        "I4: what was dropped is called stale",
    ),
    "7 claims of a ghost": (
        (writer, "Answer", without_reads_of_low),
        "a ghost is claimed from",
        "messages of a dropped bucket are handed out",
    ),
}


@pytest.mark.parametrize("rule", WITHOUT)
def test_without_this_rule_some_order_of_steps_breaks_it(
    rule: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (target, name, instead), world, breaks = WITHOUT[rule]
    if world in EVICTS:
        request.getfixturevalue("few_tags")
    monkeypatch.setattr(target, name, instead)
    explored = search(WORLDS[world])
    assert explored.trace is not None
    assert breaks == explored.trace.invariant


def test_without_its_rule_one_callers_mistake_ends_the_wait_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intents, "_applied", raises)
    with pytest.raises(IllegalMove):
        search(WORLDS["a move that the row does not allow"])
