"""`RowWriter` step by step, and its fold: what a search of small worlds does not come to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.bucket import Bucket, IllegalMove, Status, with_closed_sets
from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.outcome import Stored, Tag, Tags, Version
from cassieq_spark.model.pointer import MINUTE_US, minute_of
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import (
    Answer,
    CasEnded,
    End,
    Fate,
    Granted,
    Hinted,
    Left,
    Pause,
    PauseOver,
    Queued,
    ReadRow,
    RowRead,
    SendCas,
    Taken,
    Tick,
    TurnOver,
    WriteHints,
)
from cassieq_spark.model.rows.intents import (
    ACK,
    Ask,
    Cancel,
    Change,
    Claim,
    Claimed,
    Intent,
    Moment,
    Purge,
    Settle,
    Turn,
    fold,
)
from cassieq_spark.model.rows.waiting import FOLD_AT_MOST, PATIENCE_S
from cassieq_spark.model.rows.writer import MAX_REFUSALS, RowWriter
from cassieq_spark.model.settlement import (
    Action,
    Extend,
    Judged,
    Reject,
    Release,
    TakeOver,
    Update,
)
from tests.explicit.row_oracles import _places, alone
from tests.fixtures import rows
from tests.fixtures.rows import TEN, sealed

NOW = 100 * MINUTE_US + 10_000_000
HOUR_US = 60 * MINUTE_US
Row = Stored[Bucket]


def moment(at_s: float = 0.0) -> Moment:
    numbers = itertools.count(round(at_s * 1e6) * 1_000 + 1)
    return Moment(
        now_us=NOW + round(at_s * 1e6),
        at_s=at_s,
        spare_us=0,
        new_id=lambda: UUID(int=5 << 64 | next(numbers)),
    )


def stored(value: Bucket, writer: int = 1, *, version: int = 1) -> Row:
    return Stored(
        value=value,
        version=Version(writer=UUID(int=writer), tags=Tags(), row_version=version),
    )


def written(cas: SendCas) -> Row:
    """The row as this CAS leaves it."""
    number = cas.before.row_version + 1
    tag = Tag(client=UUID(int=7), writer=cas.mark, row_version=number)
    tags = Tags().with_tag(tag)
    return Stored(value=cas.row, version=Version(writer=cas.mark, tags=tags, row_version=number))


def held(*offsets: int, number: int = 7) -> Bucket:
    runs = Runs.from_offsets(offsets)
    lease = rows.lease(number, runs, until_us=NOW + HOUR_US)
    return sealed(changed_us=NOW, fresh=TEN - runs, leases=(lease,))


def does(action: Action, *offsets: int, number: int = 7) -> Settle:
    return Settle(asks=(Ask(UUID(int=number), action, Runs.from_offsets(offsets)),))


def claim(at_most: int = 1, **more: Any) -> Claim:
    return Claim(**{"at_most": at_most, "owner": "me", "visibility_us": 30_000_000, **more})


def only(outputs: Iterable[events.Output], kind: type[Any]) -> Any:
    (one,) = [output for output in outputs if isinstance(output, kind)]
    return one


class Owned:
    """A writer with an owner that writes hints at once, and reads what is given."""

    def __init__(self, row: Bucket | None, **more: Any) -> None:
        self.writer = RowWriter()
        self.row = None if row is None else stored(row, **more)
        self.tickets = itertools.count(1)
        self.answers: dict[int, Answer] = {}

    def step(self, event: events.Event, at_s: float = 0.0) -> list[events.Output]:
        """Take a step; answer hints and reads at once."""
        left = list(self.writer.step(event, moment(at_s)))
        seen: list[events.Output] = []
        while left:
            one = left.pop(0)
            seen.append(one)
            if isinstance(one, WriteHints):
                left += self.writer.step(Hinted(minutes=one.minutes), moment(at_s))
            elif isinstance(one, ReadRow):
                left += self.writer.step(RowRead(row=self.row), moment(at_s))
            elif isinstance(one, Answer):
                self.answers[one.ticket] = one
        return seen

    def wants(self, intent: Intent, at_s: float = 0.0, **more: Any) -> list[events.Output]:
        return self.step(Queued(ticket=next(self.tickets), intent=intent, **more), at_s)

    def applies(self, cas: SendCas, at_s: float = 0.0) -> list[events.Output]:
        self.row = written(cas)
        return self.step(CasEnded(fate=Fate.APPLIED, now=self.row), at_s)


# --- the fold -------------------------------------------------------------------------------------

FOUND = st.integers(0, 9)
ACTIONS = st.sampled_from(
    [
        ACK,
        Release(),
        Release(count_delivery=False),
        Release(due_us=NOW + HOUR_US),
        Extend(visibility_us=60_000_000),
        TakeOver(run=UUID(int=3), visibility_us=60_000_000),
        Reject(reason="no"),
    ]
)
SETTLES = st.builds(
    lambda action, number, offsets: does(action, *offsets, number=number),
    st.one_of(st.just(ACK), ACTIONS),
    st.sampled_from([7, 8]),
    st.sets(FOUND, min_size=1, max_size=3),
)
INTENTS = st.one_of(
    SETTLES,
    SETTLES,
    st.builds(claim, st.integers(1, 4), owner=st.sampled_from(["me", "you"])),
    st.builds(lambda offset: Cancel(runs=Runs.span(offset, offset)), FOUND),
    st.just(Purge()),
)


@pytest.mark.invariant("I3")
@given(st.lists(INTENTS, max_size=8), st.sets(FOUND), st.sets(FOUND), st.booleans())
def test_a_fold_tells_each_what_it_would_be_told_one_after_the_other(
    intents: list[Any], some: set[int], others: set[int], is_over: bool
) -> None:
    until_us = NOW - HOUR_US if is_over else NOW + HOUR_US
    leases = [
        rows.lease(number, Runs.from_offsets(offsets), until_us=until_us)
        for number, offsets in ((7, some), (8, others - some))
        if offsets
    ]
    row = sealed(changed_us=NOW, fresh=TEN - Runs.from_offsets(some | others), leases=tuple(leases))
    folded = fold(row, list(enumerate(intents, 1)), moment())

    assert set(range(1, len(intents) + 1)) == set(folded.effects)
    at = moment()
    for ticket, effect in folded.effects.items():
        row, expected = alone(row, intents[ticket - 1], at)
        if isinstance(effect.result, Claimed):
            told = {(one.delivery_count, one.runs) for one in effect.result.leases}
            assert {(one.delivery_count, one.runs) for one in expected} == told
        elif isinstance(effect.result, Judged):
            assert expected == effect.result
    assert folded.row is not None
    assert _places(row) == _places(folded.row)


def test_a_thousand_acks_are_judged_at_once_and_a_thousand_claims_share_leases() -> None:
    size = FOLD_AT_MOST
    runs = Runs.span(0, 2 * size - 1)
    lease = rows.lease(7, Runs.span(0, size - 1), until_us=NOW + HOUR_US)
    row = sealed(manifest=runs, fresh=Runs.span(size, 2 * size - 1), leases=(lease,))
    acks: list[Any] = [(at + 1, does(ACK, at)) for at in range(size)]
    claims: list[Any] = [(size + at + 1, claim()) for at in range(size)]

    folded = fold(row, [*acks, *claims], moment())

    assert folded.row is not None
    assert [Runs.span(size, 2 * size - 1)] == [one.runs for one in folded.row.leases]
    last = folded.effects[2 * size].result
    assert isinstance(last, Claimed)
    assert [Runs.span(2 * size - 1, 2 * size - 1)] == [one.runs for one in last.leases]


def test_claims_of_a_spark_run_share_with_nobody() -> None:
    row = sealed(fresh=TEN)
    run = UUID(int=3)
    folded = fold(row, [(1, claim(run=run)), (2, claim(run=run)), (3, claim())], moment())
    assert folded.row is not None
    assert 3 == len({one.lease_id for one in folded.row.leases})


def test_whole_leases_are_settled_too() -> None:
    row = held(0, 1)
    all_of_it = Settle(asks=(Ask(UUID(int=7), Release(), None), Ask(UUID(int=7), Release(), None)))
    folded = fold(row, [(1, all_of_it)], moment())
    assert folded.row is not None
    assert () == folded.row.leases
    assert folded.effects[1].is_whole
    assert (0,) == folded.effects[1].times_us


def test_a_move_that_the_row_does_not_allow_fails_its_own_caller() -> None:
    closing = Change(change=lambda row, now_us, _: with_closed_sets(row, now_us=now_us))
    nothing = Change(change=lambda _row, _now_us, _new_id: None)
    drained = sealed(status=Status.DRAINED)
    folded = fold(drained, [(1, closing), (2, nothing), (3, Cancel(runs=TEN))], moment())
    assert isinstance(folded.effects[1].result, IllegalMove)
    assert [False, False] == [folded.effects[ticket].result for ticket in (2, 3)]
    assert folded.row is drained


# --- the writer -----------------------------------------------------------------------------------


def test_what_comes_while_a_cas_is_under_way_shares_the_next_one() -> None:
    owned = Owned(held(0, 1))
    first = only(owned.wants(claim()), SendCas)
    assert [] == owned.wants(does(ACK, 0)) + owned.wants(does(ACK, 1)) + owned.wants(claim(2))

    second = only(owned.applies(first), SendCas)

    assert (2, 3, 4) == second.tickets
    assert {1} == set(owned.answers)
    owned.applies(second)
    assert [End.DONE] * 4 == [one.end for one in owned.answers.values()]
    owned.step(Taken(ticket=1))
    owned.step(Taken(ticket=4))
    assert inf == owned.writer.wake_at_s


def test_an_ack_waits_for_company_until_it_is_time_or_a_claim_comes() -> None:
    owned = Owned(held(0, 1))
    assert [] == owned.wants(does(ACK, 0), company_until_s=0.1)
    assert 0.1 == owned.writer.wake_at_s
    assert (1,) == only(owned.step(Tick(), 0.1), SendCas).tickets

    owned = Owned(held(0, 1))
    owned.wants(does(ACK, 0), company_until_s=0.1)
    assert (1, 2) == only(owned.wants(claim()), SendCas).tickets


def test_a_thousand_acks_wait_for_no_more_company() -> None:
    owned = Owned(sealed(leases=(rows.lease(7, Runs.span(0, 1_999), until_us=NOW + HOUR_US),)))
    for at in range(FOLD_AT_MOST - 1):
        assert [] == owned.wants(does(ACK, at), company_until_s=0.1)
    assert FOLD_AT_MOST == len(only(owned.wants(does(ACK, 1_500)), SendCas).tickets)


def test_a_cas_is_sent_until_the_latest_deadline_and_each_caller_waits_until_its_own() -> None:
    owned = Owned(held(0, 1))
    owned.wants(does(ACK, 0), deadline_s=5.0, company_until_s=1.0)
    owned.wants(does(ACK, 1), deadline_s=8.0, company_until_s=1.0)
    assert 8.0 == only(owned.step(Tick(), 1.0), SendCas).until_s
    assert 5.0 == owned.writer.wake_at_s
    told = only(owned.step(Tick(), 5.0), Answer)
    assert (1, End.AMBIGUOUS) == (told.ticket, told.end)
    assert 8.0 == owned.writer.wake_at_s


def test_nothing_was_sent_says_why() -> None:
    owned = Owned(held(0))
    owned.wants(does(ACK, 0))
    error = TimeoutError("no host")
    told = only(owned.step(CasEnded(fate=Fate.REFUSED, error=error)), Answer)
    assert (End.NOT_SENT, error) == (told.end, told.error)


def test_a_settlement_is_refused_so_many_times_and_a_claim_once() -> None:
    owned = Owned(held(0))
    owned.wants(does(ACK, 0), company_until_s=0.1)
    cas = only(owned.wants(claim()), SendCas)
    for attempt in range(MAX_REFUSALS - 1):
        owned.row = stored(held(0), 100 + attempt, version=cas.before.row_version + 1)
        out = owned.step(CasEnded(fate=Fate.REFUSED, now=owned.row))
        assert attempt == only(out, Pause).attempt
        out = owned.step(PauseOver(), 1.0)
        # The first row came with the refusal; after longer pauses it is read again.
        assert (attempt > 0) == any(isinstance(one, ReadRow) for one in out)
        cas = only(out, SendCas)
    assert End.LOST == owned.answers[2].end
    owned.step(CasEnded(fate=Fate.REFUSED, now=stored(held(0), 99, version=500)))
    assert End.CONTENDED == owned.answers[1].end


def test_a_claim_that_comes_during_a_pause_is_lost_at_once() -> None:
    owned = Owned(held(0))
    owned.wants(does(ACK, 0))
    now = stored(held(0), 9, version=2)
    owned.step(CasEnded(fate=Fate.REFUSED, now=now))
    told = only(owned.wants(claim()), Answer)
    assert (End.LOST, now.value, now) == (told.end, told.before, told.row)


def test_a_row_that_others_change_is_read_until_this_client_is_alone_again() -> None:
    owned = Owned(held(*range(10)))
    owned.wants(does(ACK, 0))
    owned.row = stored(held(*range(10)), 9, version=2)
    owned.step(CasEnded(fate=Fate.REFUSED, now=owned.row))
    cas = only(owned.step(PauseOver()), SendCas)
    reads = []
    for at in range(1, 8):
        owned.applies(cas)
        out = owned.wants(does(ACK, at))
        reads.append(any(isinstance(one, ReadRow) for one in out))
        cas = only(out, SendCas)
    assert [True] * 4 + [False] * 3 == reads


def test_a_turn_comes_when_nothing_is_under_way_and_all_wait_for_its_end() -> None:
    owned = Owned(held(0, 1))
    cas = only(owned.wants(does(ACK, 0)), SendCas)
    assert [] == owned.wants(does(ACK, 1)) + owned.wants(Turn()) + owned.wants(claim())
    cas = only(owned.applies(cas), SendCas)
    assert (2,) == cas.tickets
    assert 3 == only(owned.applies(cas), Granted).ticket
    assert [] == owned.wants(does(ACK, 1))
    out = owned.step(TurnOver())
    assert isinstance(out[0], ReadRow)
    assert (5, 4) == only(out, SendCas).tickets


def test_a_turn_comes_after_a_look_for_what_is_in_doubt() -> None:
    """Its statement takes the place of our tag, which tells whether that has happened (G3)."""
    owned = Owned(held(0))
    only(owned.wants(claim()), SendCas)
    assert End.AMBIGUOUS == only(owned.step(CasEnded(fate=Fate.OPEN)), Answer).end
    out = owned.wants(Turn())
    assert [ReadRow, Granted] == [type(one) for one in out]


def test_a_row_that_a_turn_has_left_is_known() -> None:
    owned = Owned(None)
    only(owned.wants(Turn()), Granted)
    waits = owned.wants(does(ACK, 0))
    assert [] == waits
    left = stored(held(0), writer=9, version=2)
    out = owned.step(TurnOver(row=left))
    assert [SendCas] == [type(one) for one in out]
    assert left.version is only(out, SendCas).before


def test_a_row_as_it_was_left_is_given_only_while_nobody_else_changes_it() -> None:
    owned = Owned(held(0, 1))
    cas = only(owned.wants(does(ACK, 0)), SendCas)
    assert owned.writer.left(NOW) is None
    owned.applies(cas)
    assert owned.writer.left(NOW) == owned.row
    owned.writer.forget()
    assert owned.writer.left(NOW) is None


def test_a_turn_whose_caller_has_left_before_it_knew_is_over() -> None:
    owned = Owned(held(0))
    only(owned.wants(Turn()), Granted)
    assert [] == owned.wants(does(ACK, 0))
    assert [ReadRow, SendCas] == [type(one) for one in owned.step(Left(ticket=1))]


def test_t4_a_late_hint_is_written_again_also_where_a_read_tells_that_it_happened() -> None:
    owned = Owned(held(0))
    cas = only(owned.wants(does(Release(due_us=NOW + MINUTE_US), 0)), SendCas)
    owned.row = written(cas)
    out = owned.step(CasEnded(fate=Fate.OPEN), 200.0)
    assert End.DONE == only(out, Answer).end
    assert any(isinstance(one, WriteHints) and not one.tickets for one in out)


def test_t7_a_hint_is_written_again_where_the_time_pointer_has_passed_it() -> None:
    owned = Owned(held(0, 1))
    owned.applies(only(owned.wants(does(Extend(visibility_us=30_000_000), 0)), SendCas))
    ahead = replace(moment(), passed=minute_of(NOW) + 9)
    extends = Queued(ticket=9, intent=does(Extend(visibility_us=30_000_000), 1))
    out = owned.writer.step(extends, ahead)
    assert (minute_of(NOW) + 10,) == only(out, WriteHints).minutes


def test_a_hint_that_fails_ends_those_who_need_it() -> None:
    owned = Owned(held(0))
    writer, error = owned.writer, TimeoutError("hints")
    writer.step(Queued(ticket=1, intent=claim()), moment())
    hints = only(writer.step(RowRead(row=owned.row), moment()), WriteHints)
    assert (minute_of(NOW + 30_000_000),) == hints.minutes
    assert () == writer.step(Queued(ticket=2, intent=does(ACK, 0)), moment())
    out = writer.step(Hinted(minutes=hints.minutes, error=error), moment())
    told = only(out, Answer)
    assert (1, End.NOT_SENT, error) == (told.ticket, told.end, told.error)
    assert (2,) == only(out, SendCas).tickets
    # The next one asks again.
    now = written(only(out, SendCas))
    out = writer.step(CasEnded(fate=Fate.APPLIED, now=now), moment())
    out = writer.step(Queued(ticket=3, intent=claim()), moment())
    assert hints.minutes == only(out, WriteHints).minutes


def test_all_wait_a_second_for_a_hint_and_no_longer_however_many_come() -> None:
    owned = Owned(held(0, 1, 2))
    writer = owned.writer
    writer.step(Queued(ticket=1, intent=claim()), moment())
    writer.step(RowRead(row=owned.row), moment())
    assert () == writer.step(Queued(ticket=2, intent=does(ACK, 0)), moment(0.5))
    assert PATIENCE_S == writer.wake_at_s
    cas = only(writer.step(Tick(), moment(PATIENCE_S)), SendCas)
    assert (2,) == cas.tickets
    now = written(cas)
    assert only(writer.step(CasEnded(fate=Fate.APPLIED, now=now), moment(1.2)), Answer)
    assert inf == writer.wake_at_s
    # The hint is still under way: the next ack does not wait for it.
    assert (3,) == only(
        writer.step(Queued(ticket=3, intent=does(ACK, 1)), moment(1.3)), SendCas
    ).tickets


def test_what_nobody_can_read_is_answered_and_what_is_to_be_given_back_goes_on() -> None:
    owned = Owned(sealed(changed_us=NOW, fresh=TEN))
    owned.applies(only(owned.wants(claim()), SendCas))
    writer = owned.writer
    assert ReadRow(until_s=inf) in writer.step(
        Queued(ticket=2, intent=does(ACK, 5, number=9)), moment()
    )
    assert () == writer.step(Left(ticket=1), moment())
    out = owned.step(RowRead(error=TimeoutError("away")))
    assert End.NOT_SENT == owned.answers[2].end
    cas = only(out, SendCas)
    assert (-1,) == cas.tickets
    assert (EMPTY, TEN) == (cas.row.returned[0].runs - Runs.span(0, 0), cas.row.unacked)
    assert 0 == cas.row.returned[0].deliveries


def test_an_unknown_cas_whose_row_cannot_be_read_is_ambiguous_for_all() -> None:
    owned = Owned(held(0))
    writer = owned.writer
    owned.wants(does(Release(), 0))
    owned.wants(does(ACK, 5, number=9))
    writer.step(CasEnded(fate=Fate.OPEN, error=TimeoutError("unheard")), moment())
    out = writer.step(RowRead(error=TimeoutError("away")), moment())
    assert (1, End.AMBIGUOUS) == (only(out, Answer).ticket, only(out, Answer).end)


def test_a_look_that_is_newer_is_believed_and_an_older_one_is_not() -> None:
    owned = Owned(None)
    newer = stored(sealed(fresh=TEN), 3, version=3)
    cas = only(owned.wants(claim(), known=newer), SendCas)
    assert newer.version == cas.before
    owned.applies(cas)
    older = stored(sealed(fresh=TEN), 2, version=2)
    assert UUID(int=3) != only(owned.wants(claim(), known=older), SendCas).before.writer


def test_a_look_that_has_found_a_row_is_believed_though_none_was_there() -> None:
    owned = Owned(None)
    told = only(owned.wants(claim()), Answer)
    assert (End.DONE, Claimed(), None, True) == (told.end, told.result, told.row, told.reads_low)
    assert only(owned.wants(claim(), known=stored(sealed(fresh=TEN))), SendCas)


def test_an_update_is_told_by_its_own_change_of_the_row() -> None:
    owned = Owned(held(0, 1))
    update = Update(new_lease_id=UUID(int=44), revision=5)
    cas = only(owned.wants(does(update, 0)), SendCas)
    told = only(owned.applies(cas), Answer)
    assert told.before == held(0, 1)
    assert told.changed is not None
    assert told.changed.lease(UUID(int=44)) is not None
    assert not told.reads_low


def test_an_answer_that_nobody_waits_for_is_refused() -> None:
    with pytest.raises(ValueError, match="was not sent"):
        RowWriter().step(CasEnded(fate=Fate.APPLIED), moment())
