"""Fold the intents of several callers into one change of a row, in a stated order. Pure.

    settlements, in the order in which they came  ->  claims

Each has the result that it would have if all were carried out in this order, one after the other.
Settlements come first: a lease that ran out is still its holder's until a claim takes it [R20].
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from cassieq_spark.model.bucket import Bucket, IllegalMove
from cassieq_spark.model.ids import EMPTY, OFFSET_LIMIT, Runs, union
from cassieq_spark.model.rows.intents import (
    ACK,
    Ask,
    Claim,
    Effect,
    Moment,
    Result,
    Settle,
    Settlement,
    claim_together,
    settled,
)
from cassieq_spark.model.settlement import Judged

Wanted = tuple[int, Settlement | Claim]
"""A ticket, and its caller's intent."""


@dataclass(slots=True, kw_only=True)
class Folded:
    """The row after the whole fold, and each caller's part.

    Attributes:
        effects: By ticket, in the order of the fold.
    """

    row: Bucket | None
    effects: dict[int, Effect] = field(default_factory=dict)

    def add(self, ticket: int, effect: Effect) -> None:
        """Add an effect as the last one so far."""
        self.effects[ticket] = effect
        self.row = effect.row


def fold(row: Bucket | None, wanted: Iterable[Wanted], moment: Moment) -> Folded:
    """Apply all intents to one row.

    Args:
        wanted: In the order in which they came; at most a thousand, so that a fold takes some
            milliseconds (a row of 16,000 leases: 0.1 s).
    """
    folded = Folded(row=row)
    acks = _Acks()
    wanted = in_order(wanted)
    for ticket, intent in wanted:
        if isinstance(intent, Claim):
            continue
        acked = intent.touches if isinstance(intent, Settle) and intent.is_plain_ack else None
        if acked is None or not may_merge(acks.places, acked):
            acks.carry_out(folded, moment)
            acks = _Acks()
        if isinstance(intent, Settle) and acked is not None:
            acks.add(ticket, intent, acked)
        else:
            folded.add(ticket, _applied(intent, folded.row, moment))
    acks.carry_out(folded, moment)
    for group in _together(wanted):
        claims = [claim for _, claim in group]
        effects = claim_together(folded.row, claims, moment)
        for (ticket, _), effect in zip(group, effects, strict=True):
            folded.add(ticket, effect)
    return folded


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Return the order of a fold: settlements, then claims, each as they came."""
    return sorted(wanted, key=lambda one: isinstance(one[1], Claim))


def may_merge(places: Sequence[tuple[int, int]], acked: Runs) -> bool:
    """Whether an ack may be merged with those so far into one settlement.

    It must be of other messages: a message's second action is judged on the row after the first. A
    merge goes through the row once, not once for each ack.

    Args:
        places: The runs of the acks so far, ascending.
        acked: The messages of this ack.
    """
    return not any(
        (at := bisect_right(places, (last, OFFSET_LIMIT))) and places[at - 1][1] >= first
        for first, last in acked.pairs
    )


class _Acks:
    """Acks of different messages, which make one settlement."""

    def __init__(self) -> None:
        self._members: list[tuple[int, Settle]] = []
        self.places: list[tuple[int, int]] = []

    def add(self, ticket: int, intent: Settle, acked: Runs) -> None:
        self._members.append((ticket, intent))
        for place in acked.pairs:
            insort(self.places, place)

    def carry_out(self, folded: Folded, moment: Moment) -> None:
        if not self._members:
            return
        together = settled(
            folded.row, [ask for _, one in self._members for ask in one.asks], moment
        )
        for ticket, one in self._members:
            mine = _part(together.result, one.asks, holds_all=together.is_whole)
            is_whole = not (mine.acked or mine.stale or mine.never)
            folded.add(
                ticket, replace(together, result=mine, is_whole=is_whole, reads_low=not is_whole)
            )


def _part(judged: Result, asks: Sequence[Ask], *, holds_all: bool) -> Judged:
    """Return one caller's part of the verdict on merged acks."""
    mine: dict[UUID, Runs] = {}
    for ask in asks:
        mine[ask.lease_id] = mine.get(ask.lease_id, EMPTY) | (ask.runs or EMPTY)
    if holds_all or not isinstance(judged, Judged):
        return Judged(held={ACK: mine})

    def of(found: Mapping[UUID, Runs]) -> dict[UUID, Runs]:
        return {key: part for key, runs in mine.items() if (part := found.get(key, EMPTY) & runs)}

    held = of(judged.held.get(ACK, {}))
    return Judged(
        held={ACK: held} if held else {},
        acked=judged.acked & union(mine.values()),
        stale=of(judged.stale),
        never=of(judged.never),
    )


def _applied(intent: Settlement, row: Bucket | None, moment: Moment) -> Effect:
    """Apply one settlement; a move that the row does not allow fails its own caller only."""
    try:
        return intent.apply(row, moment)
    except IllegalMove as error:
        return Effect(before=row, row=row, result=error, is_whole=False)


def _together(wanted: Iterable[Wanted]) -> list[list[tuple[int, Claim]]]:
    """Group the claims that share leases, in the order of each group's first claim."""
    groups: dict[object, list[tuple[int, Claim]]] = {}
    for ticket, intent in wanted:
        if isinstance(intent, Claim):
            key = ticket if intent.sharing is None else intent.sharing
            groups.setdefault(key, []).append((ticket, intent))
    return list(groups.values())
