"""Judge what a `RowWriter` does, by rules that are not its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import itemgetter
from typing import Any
from uuid import UUID

from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Bucket, IllegalMove, Lease, Status
from cassieq_spark.model.ids import EMPTY, union
from cassieq_spark.model.lease import Terms, Wanted, cancelled
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.rows.events import SendCas
from cassieq_spark.model.rows.intents import (
    Cancel,
    Claim,
    Claimed,
    Intent,
    Moment,
    Purge,
    Settle,
    asked_of,
)
from cassieq_spark.model.rows.waiting import Entry, Hints, Waiting, overlap
from cassieq_spark.model.rows.writer import Sent
from cassieq_spark.model.settlement import Ack, Extend, Judged


def ids(client: int, sends: int) -> Callable[[], UUID]:
    """Ids of one client, drawn again by a fold that was not sent."""
    at = sends * 64

    def draw() -> UUID:
        nonlocal at
        at += 1
        return UUID(int=client << 32 | at)

    return draw


# --- a writer as a value --------------------------------------------------------------------------


def fork(thing: Any) -> Any:
    """A copy that can be changed: its lists, dicts and parts are its own, what is frozen is not."""
    made = object.__new__(type(thing))
    for name, value in vars(thing).items():
        if isinstance(value, Waiting | Hints):
            setattr(made, name, fork(value))
        else:
            is_open = isinstance(value, list | dict | set)
            setattr(made, name, type(value)(value) if is_open else value)
    return made


def key_of(thing: Any) -> tuple[Any, ...]:
    """All that decides what it does next."""
    return tuple(_key(value) for _, value in sorted(vars(thing).items(), key=itemgetter(0)))


def _key(value: Any) -> Any:
    if isinstance(value, Waiting | Hints):
        return key_of(value)
    if isinstance(value, Sent):
        return value.mark, value.before.writer, value.entries, value.folded.row, value.sent_us
    if isinstance(value, list | tuple):
        return tuple(_key(one) for one in value)
    if isinstance(value, dict):
        return tuple(sorted((key, _key(one)) for key, one in value.items()))
    if isinstance(value, set):
        return frozenset(value)
    return str(value) if isinstance(value, Exception) else value


# --- one CAS --------------------------------------------------------------------------------------


def fault_of_cas(
    cas: SendCas, row: Bucket, made: Sent, moment: Moment, hints: frozenset[int]
) -> str | None:
    """What is wrong with a CAS when it is sent."""
    by_ticket = {one.ticket: one for one in made.entries}
    sent = [(ticket, by_ticket[ticket].intent) for ticket in cas.tickets]
    return (
        _order(sent)
        or _limit(cas, by_ticket.values())
        or _times(cas.row, row, sent, moment)
        or _hints(cas.row, row, moment, hints)
        or _sequence(cas, row, sent, made, moment)
    )


def overtaken(sent: Iterable[Entry], waiting: Iterable[Entry]) -> str | None:
    """Whether an action goes before an earlier one on the same message."""
    for late in sent:
        for early in waiting:
            is_one = overlap(early.intent.touches, late.intent.touches)
            if 0 < early.ticket < late.ticket and is_one and not late.is_claim:
                return "an action overtakes an earlier one on the same message"
    return None


def has_effect(result: object) -> bool:
    """Whether a result says that something was changed for this caller."""
    if isinstance(result, Judged):
        return bool(result.held)
    return bool(result.leases) if isinstance(result, Claimed) else bool(result)


def not_in(row: Any, leases: Iterable[Lease]) -> bool:
    """Whether a row does not hold all of these."""
    held = {} if row is None else settlement.held_runs(row.value)
    return any(not one.runs.issubset(held.get(one.lease_id, EMPTY)) for one in leases)


def _order(sent: list[tuple[int, Intent]]) -> str | None:
    kinds = [isinstance(intent, Claim) for _, intent in sent]
    if kinds != sorted(kinds):
        return "R20: a claim comes before a settlement"
    tickets = [ticket for ticket, intent in sent if not isinstance(intent, Claim) and ticket > 0]
    return None if tickets == sorted(tickets) else "settlements change their order"


def _limit(cas: SendCas, entries: Iterable[Entry]) -> str | None:
    if cas.until_s < max(one.deadline_s for one in entries):
        return "a CAS is given up before the time of its last caller is over"
    return None


def _times(new: Bucket, old: Bucket, sent: list[tuple[int, Intent]], moment: Moment) -> str | None:
    if new.changed_us < old.changed_us:
        return "R2: a row was changed before it was changed"
    known = {one.lease_id for one in old.leases}
    shortest = min((i.visibility_us for _, i in sent if isinstance(i, Claim)), default=0)
    for lease in new.leases:
        is_new = lease.lease_id not in known and bool(shortest)
        if is_new and lease.until_us < moment.now_us + shortest:
            return "R21: a lease is shorter than was asked"
    for _, intent in sent:
        for ask in intent.asks if isinstance(intent, Settle) else ():
            if isinstance(ask.action, Extend):
                named = [one for one in new.leases if one.lease_id == ask.lease_id]
                ends = [one.until_us for one in named if ask.runs is None or one.runs & ask.runs]
                if ends and min(ends) < moment.now_us + ask.action.visibility_us:
                    return "R21: an extension is shorter than was asked"
    return None


def _hints(new: Bucket, old: Bucket, moment: Moment, hints: frozenset[int]) -> str | None:
    before = {(one.until_us, offset) for one in old.leases for offset in one.runs.offsets()}
    before |= {(one.due_us, offset) for one in old.delayed for offset in one.runs.offsets()}
    before |= {(0, offset) for one in old.returned for offset in one.runs.offsets()}
    after = {(one.until_us, offset) for one in new.leases for offset in one.runs.offsets()}
    after |= {(one.due_us, offset) for one in new.delayed for offset in one.runs.offsets()}
    after |= {(0, offset) for one in new.returned for offset in one.runs.offsets()}
    for time_us, _ in after - before:
        if minute_of(max(time_us, moment.now_us)) not in hints:
            return "R12: a CAS is sent before its hint is written"
    return None


def _sequence(
    cas: SendCas, row: Bucket, sent: list[tuple[int, Intent]], made: Sent, moment: Moment
) -> str | None:
    """The row and each result, as if all were carried out one after the other by their rules."""
    for ticket, intent in sent:
        try:
            row, expected = alone(row, intent, moment)
        except IllegalMove:
            continue
        result = made.folded.effects[ticket].result
        if isinstance(result, Claimed):
            told = {(one.delivery_count, one.runs) for one in result.leases}
            is_same = told == {(one.delivery_count, one.runs) for one in expected}
        else:
            is_same = not isinstance(result, Judged) or result == expected
        if not is_same:
            return "somebody is told something else than one after the other"
    return None if _places(row) == _places(cas.row) else "a fold differs from one after the other"


def alone(row: Bucket, intent: Intent, moment: Moment) -> tuple[Bucket, Any]:
    """One intent by the rule of its own."""
    match intent:
        case Claim():
            wanted = {one.name: getattr(intent, one.name) for one in fields(Wanted)}
            until_us = moment.now_us + max(intent.visibility_us, moment.spare_us)
            terms = Terms(**wanted, now_us=moment.now_us, until_us=until_us)
            return lease_rules.claim(row, terms, moment.new_id)
        case Settle():
            judged = settlement.judge(row, asked_of(intent.asks))
            if not judged.held:
                return row, judged
            new = settlement.carry_out(row, judged.held, moment.new_id, now_us=moment.now_us)
            return new, judged
        case Cancel():
            return cancelled(row, intent.runs, now_us=moment.now_us), None
        case Purge():
            return intent.apply(row, moment).row or row, None
    effect = intent.apply(row, moment)  # type: ignore[union-attr]
    return effect.row or row, effect.result


def _places(row: Bucket) -> object:
    """Where each message is, whatever the ids of leases."""
    where: dict[int, tuple[object, ...]] = dict.fromkeys(row.fresh.offsets(), ("fresh",))
    for part in row.returned:
        where |= dict.fromkeys(part.runs.offsets(), ("returned", part.deliveries))
    for group in row.delayed:
        where |= dict.fromkeys(group.runs.offsets(), ("delayed", group.due_us, group.deliveries))
    for lease in row.leases:
        held = ("leased", lease.owner, lease.run, lease.delivery_count, lease.until_us)
        where |= dict.fromkeys(lease.runs.offsets(), held)
    for dead in row.dead:
        where |= dict.fromkeys(dead.runs.offsets(), ("dead", dead.reason, dead.deliveries))
    return where, row.status, row.manifest, row.cancelled, row.purged, row.revisions


# --- one answer -----------------------------------------------------------------------------------


def fault_of_verdict(
    row: Any, intent: Intent, judged: Judged, *, has_landed: bool, is_low: bool, reads_low: bool
) -> str | None:
    """What is wrong with what a settlement is told.

    Args:
        row: The row, if nobody has changed it since the question came; else None.
    """
    assert isinstance(intent, Settle)
    ended = union([*judged.stale.values(), *judged.never.values()])
    if is_low:
        return "I4: what was dropped is called stale" if ended and not reads_low else None
    if judged.held and not has_landed:
        return "a settlement is told that it took effect, and it did not"
    acks_only = all(isinstance(ask.action, Ack) for ask in intent.asks)
    if ended and not judged.held and has_landed and not acks_only:
        return "a settlement that took effect is called stale"
    if ended and row is not None:
        held = settlement.held_runs(row.value)
        if any(ended & held.get(ask.lease_id, EMPTY) for ask in intent.asks):
            return "a delivery that is held is called stale"
    return None


def claimable(row: Bucket, now_us: int) -> int:
    return lease_rules.claimable(row, now_us=now_us) if row.status is Status.SEALED else 0


def held_twice(holders: Iterable[Any], new: Iterable[Any], now_us: int) -> str | None:
    running = union(one.runs for one in holders if one.until_us >= now_us)
    for one in new:
        if one.until_us >= now_us and one.runs & running:
            return "I2: a message has two holders"
        running |= one.runs
    return None


def settled(holders: tuple[Any, ...], ask: Any) -> tuple[Any, ...]:
    """Whoever settles holds it no more."""
    left = []
    for one in holders:
        is_it = one.lease_id == ask.lease_id
        runs = one.runs - (one.runs if ask.runs is None else ask.runs) if is_it else one.runs
        left += [one._replace(runs=runs)] if runs else []
    return tuple(left)


def counted(row: Bucket, first: Bucket | None) -> str | None:
    """Nothing that nobody was handed has used up a delivery."""
    if first is None:
        return None
    fresh = first.fresh & union(part.runs for part in row.returned if part.deliveries)
    return "P18: a delivery that nobody was handed is counted" if fresh else None
