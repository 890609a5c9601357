"""One sealed bucket: who cancels a message, who claims it, and its end.

See docs/design/due-lanes.md.

What a CAS writes is computed by `model.lease` and `model.settlement`; the order of
the steps is that of `queue/settle/settle.py`, `queue/get/claim.py` and `repair/heal.py`. Between
the read and the CAS of one client anything may happen, and the answer of a CAS may be lost. Leases
end with a tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.expiry import Expiring
from cassieq_spark.model.ids import Runs, union
from cassieq_spark.model.lease import Terms

Step = tuple[str, "State"]

TICK_US = 1_000_000
ONE = Runs.span(0, 0)
"""The message that is cancelled; there is another beside it."""

BOTH = Runs.span(0, 1)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a negative control replaces."""

    cancelled: Callable[..., Bucket] = lease_rules.cancelled
    claim: Callable[..., tuple[Bucket, tuple[lease_rules.Lease, ...]]] = lease_rules.claim
    take_out: Callable[..., tuple[Bucket, tuple[lease_rules.Lease, ...]]] = lease_rules.claim


class Cancel(NamedTuple):
    """Who cancels: what was read, with its version, and the answer."""

    seen: tuple[Bucket, int] | None = None
    told: bool | None = None


class Claim(NamedTuple):
    """Who gets: what was read, the lease in hand, or one that came too late."""

    seen: tuple[Bucket, int, int] | None = None
    held: UUID | None = None
    since: int = 0
    runs: Runs = Runs()
    late: UUID | None = None
    gets: int = 2


class Repair(NamedTuple):
    """Who takes out what expired: what was read, with its version and when."""

    seen: tuple[Bucket, int, int] | None = None
    passes: int = 2


class State(NamedTuple):
    """The row, and where each client is."""

    row: Bucket
    cancels: tuple[Cancel, ...]
    claims: tuple[Claim, ...]
    repairs: tuple[Repair, ...] = ()
    version: int = 0
    now: int = 0
    handed: Runs = Runs()
    too_late: bool = False
    acked: Runs = Runs()
    lost: int = 0
    serial: int = 0


@dataclass(kw_only=True)
class CancelWorld:
    """The model that is explored.

    Attributes:
        cancels, claims, repairs: How many clients of each kind.
        lost: How many answers are lost.
        late: Whether claims may be answered after their end: they are given back uncounted.
        ticks: How often leases end; with ``lives`` the message expires at the last one.
        holds_us: How long a lease is.
        dies: Whether what expired is to be moved to the dead letters.
    """

    cancels: int = 1
    claims: int = 1
    repairs: int = 0
    lost: int = 1
    late: bool = True
    ticks: int = 1
    lives: bool = False
    dies: bool = False
    holds_us: int = TICK_US // 2
    rules: Rules = field(default_factory=Rules)

    def start(self) -> State:
        row = Bucket(status=Status.SEALED, changed_us=0, manifest=BOTH, fresh=BOTH)
        if self.lives:
            row = replace(row, expiring=(Expiring(expires_us=self.ticks * TICK_US, runs=ONE),))
        return State(
            row=row,
            cancels=(Cancel(),) * self.cancels,
            claims=(Claim(),) * self.claims,
            repairs=(Repair(),) * self.repairs,
            lost=self.lost,
        )

    def describe(self, state: State) -> str:
        return str(state)

    def broken(self, state: State) -> str | None:
        return self._two_owners(state) or self._nowhere(state)

    def _two_owners(self, state: State) -> str | None:
        told = [one.told for one in state.cancels]
        if True in told and ONE & state.handed:
            return "I2: cancelled, and delivered"
        if state.too_late:
            return "I2: expired, and delivered"
        for one in state.claims:
            is_running = state.now * TICK_US <= one.since * TICK_US + self.holds_us
            lease = None if one.held is None else state.row.lease(one.held)
            has_all = one.held is None or (lease is not None and one.runs.issubset(lease.runs))
            if is_running and not has_all:
                return "I3: whoever holds it has lost it before his lease was over"
        return None

    def _nowhere(self, state: State) -> str | None:
        told = [one.told for one in state.cancels]
        is_over = self.lives and state.now >= self.ticks
        gone = BOTH - state.row.unacked - state.acked - state.row.cancelled
        if is_over and not self.dies:
            gone -= ONE
        if gone and not (False not in told and ONE.issubset(gone)):
            return "I1: a message is nowhere"
        if gone and True not in told:
            return "I1: a message is nowhere, and nobody has cancelled it"
        is_told_late = False in told and True not in told and not is_over
        # Another may cancel what a claim had for a moment, and gave back.
        others = state.row.cancelled if len(told) > 1 else Runs()
        if is_told_late and not ONE & (state.handed | state.row.unacked | others):
            return "I4: told that it is too late, and nobody was given it"
        return None

    def steps(self, state: State) -> Iterator[Step]:
        for number, one in enumerate(state.cancels):
            if one.told is None:
                for name, after in self._cancel(state, number, one):
                    yield f"C{number} {name}", after
        for number, each in enumerate(state.claims):
            for name, after in self._claim(state, number, each):
                yield f"G{number} {name}", after
        for number, repair in enumerate(state.repairs):
            for name, after in self._repair(state, number, repair):
                yield f"R{number} {name}", after
        if state.now < self.ticks:
            yield "the clock ticks", state._replace(now=state.now + 1)

    # --- queue/settle/settle.py -------------------------------------------------------------------
    def _cancel(self, state: State, number: int, one: Cancel) -> Iterator[Step]:
        at = _changing("cancels", number)
        if one.seen is None:
            yield "reads the row", at(state, seen=(state.row, state.version))
            return
        row, version = one.seen
        new = self.rules.cancelled(row, ONE, now_us=state.now * TICK_US)
        if new is row:
            told = ONE.issubset(row.cancelled)
            yield f"is told {told}", at(state, seen=None, told=told)
        elif version != state.version:
            yield "loses the race", at(state, seen=None)
        else:
            written = _written(state, new)
            yield "is told True", at(written, seen=None, told=True)
            if state.lost:
                unheard = written._replace(lost=state.lost - 1)
                yield "has cancelled it, unheard", at(unheard, seen=None)

    # --- queue/get/claim.py, queue/settle/settle.py -----------------------------------------------
    def _claim(self, state: State, number: int, one: Claim) -> Iterator[Step]:
        at = _changing("claims", number)
        if one.late is not None:
            back = lease_rules.release(
                state.row, {one.late: None}, now_us=state.now * TICK_US, count_delivery=False
            )
            yield "gives back what came late", at(_written(state, back), late=None)
        elif one.held is not None:
            yield "lets it run out", at(state, held=None)
            lease = state.row.lease(one.held)
            if lease is not None:
                acked = lease_rules.ack(state.row, {one.held: None}, now_us=state.now * TICK_US)
                done = _written(state, acked)._replace(acked=state.acked | lease.runs)
                yield "acks it", at(done, held=None)
        elif one.seen is None:
            if one.gets:
                seen = (state.row, state.version, state.now)
                yield "reads the row", at(state, seen=seen, gets=one.gets - 1)
        else:
            yield from self._claimed(state, one, at)

    def _claimed(self, state: State, one: Claim, at: Callable[..., State]) -> Iterator[Step]:
        assert one.seen is not None
        row, version, then = one.seen
        lease_id = UUID(int=state.serial + 1)
        until_us = then * TICK_US + self.holds_us
        terms = self._terms(at_most=2, then=then, until_us=until_us)
        new, leases = self.rules.claim(row, terms, lambda: lease_id)
        if version != state.version or new == row:
            yield "gets nothing", at(state, seen=None)
            return
        written = _written(state, new)._replace(serial=state.serial + 1)
        if not leases:
            yield "takes out what expired", at(written, seen=None)
            return
        runs = union(lease.runs for lease in leases)
        is_late = self.lives and then >= self.ticks and bool(ONE & runs)
        given = written._replace(handed=state.handed | runs, too_late=is_late)
        yield (
            "gets it",
            at(given, seen=None, held=leases[0].lease_id, since=then, runs=leases[0].runs),
        )
        if self.late:
            yield "is answered late", at(written, seen=None, late=leases[0].lease_id)
        if state.lost:
            yield "has claimed it, unheard", at(written._replace(lost=state.lost - 1), seen=None)

    def _terms(self, *, at_most: int, then: int, until_us: int) -> Terms:
        return Terms(
            at_most=at_most,
            owner="g",
            run=None,
            now_us=then * TICK_US,
            until_us=until_us,
            expired_die=self.dies,
        )

    # --- repair/heal.py --------------------------------------------------------------------------
    def _repair(self, state: State, number: int, one: Repair) -> Iterator[Step]:
        at = _changing("repairs", number)
        if one.seen is None:
            if one.passes:
                seen = (state.row, state.version, state.now)
                yield "reads the row", at(state, seen=seen, passes=one.passes - 1)
            return
        row, version, then = one.seen
        terms = self._terms(at_most=0, then=then, until_us=then * TICK_US)
        new, _ = self.rules.take_out(row, terms, lambda: UUID(int=1_000 + state.serial))
        if new == row:
            yield "finds nothing", at(state, seen=None)
        elif version != state.version:
            yield "loses the race", at(state, seen=None)
        else:
            written = _written(state, new)._replace(serial=state.serial + 1)
            yield "takes out what expired", at(written, seen=None)


def _changing(clients: str, number: int) -> Callable[..., State]:
    """How a step changes one client, beside what else it has changed."""

    def at(after: State, **changes: object) -> State:
        some = getattr(after, clients)
        changed = some[number]._replace(**changes)
        return after._replace(**{clients: (*some[:number], changed, *some[number + 1 :])})

    return at


def _written(state: State, row: Bucket) -> State:
    """Nothing here reads when a row was changed."""
    return state._replace(row=replace(row, changed_us=0), version=state.version + 1)
