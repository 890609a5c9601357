"""One bucket row, and the clients that write it: each is a `RowWriter`, as in production.

The world stands for all that is not the writer: the network, the row with its tags, hints, time,
callers who come and leave, and clients of other releases. Between any two steps anything may
happen. What the writer sends and answers is judged against what the row has really seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import Runs, union
from cassieq_spark.model.outcome import Stored, Tag, Tags, Version
from cassieq_spark.model.pointer import LATE_AFTER_US, is_passable, minute_of
from cassieq_spark.model.rows.events import (
    Answer,
    CasEnded,
    End,
    Event,
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
from cassieq_spark.model.rows.intents import Claim, Claimed, Intent, Moment, Settle
from cassieq_spark.model.rows.writer import RowWriter
from cassieq_spark.model.settlement import Judged
from tests.explicit import row_oracles as oracles

Step = tuple[str, "State"]
Row = Stored[Bucket]

SECOND_US = 1_000_000
START_US = 60 * 60 * SECOND_US + 50 * SECOND_US
"""Ten seconds before a minute ends."""


class Plan(NamedTuple):
    """What one caller of a client does.

    Attributes:
        wants: Its intent.
        within_s: Its deadline, from when it is queued.
        company_s: How long it may wait for others.
        looks: Whether its caller has read the row before.
        leaves: Whether it may leave, at any moment until it has its answer in hand.
        after: It comes after so many changes by others.
    """

    wants: Intent
    within_s: float = 1_000.0
    company_s: float = 0.0
    looks: bool = False
    leaves: bool = False
    after: int = 0


class Frozen:
    """A writer that is not changed any more; equal if it would behave equally."""

    __slots__ = ("_hash", "_key", "writer")

    def __init__(self, writer: RowWriter) -> None:
        self.writer = writer
        self._key = oracles.key_of(writer)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._key == other._key

    def thawed(self) -> RowWriter:
        return oracles.fork(self.writer)


class Asked(NamedTuple):
    """One caller.

    Attributes:
        at: The version of the row when it came: None if there was no row.
        sends: The marks of all CASes that it was in.
        does: Of these, those by which something becomes of it.
        end: How it was answered; None: not yet.
        has_left: Its caller is gone.
    """

    ticket: int
    at: UUID | None
    since_us: int
    sends: tuple[UUID, ...] = ()
    does: tuple[UUID, ...] = ()
    end: End | None = None
    has_left: bool = False


class Client(NamedTuple):
    """One client, and what is under way for it.

    Attributes:
        asked: By number of its plans, those that were queued.
        read: None: no read is under way; (False, None): it is; (True, row): it saw this.
        cas: Under way; ``cas_is`` says where: sent, or unheard (it landed, or was refused).
        pauses: How many there were since it has read the row.
    """

    writer: Frozen
    asked: tuple[Asked, ...] = ()
    read: tuple[bool, Row | None] | None = None
    hints: frozenset[int] = frozenset()
    cas: SendCas | None = None
    cas_is: str = ""
    is_pausing: bool = False
    is_granted: bool = False
    sends: int = 0
    pauses: int = 0


class Holder(NamedTuple):
    """Who was told that it holds messages."""

    lease_id: UUID
    runs: Runs
    until_us: int


class State(NamedTuple):
    """The row, what is on its way to it, and each client."""

    row: Row | None
    clients: tuple[Client, ...]
    low: bool = False
    at: int = 0
    hints: frozenset[int] = frozenset()
    floating: tuple[SendCas, ...] = ()
    landed: frozenset[UUID] = frozenset()
    holders: tuple[Holder, ...] = ()
    lost: int = 0
    foreign: int = 0
    fault: str | None = None


@dataclass(kw_only=True)
class RowWorld:
    """The model that is explored.

    Attributes:
        row: The row that is there first; None: there is none.
        plans: By client, what its callers want, in the order in which they come.
        times_s: The moments that time jumps to, from 0 on.
        lost: How many answers to CASes, and reads, are lost.
        foreign: What others do with the row, in this order: a row from a row, or None: it is
            dropped; whatever comes after is a ghost.
        slow_reads: Whether a read may be answered later than it has seen the row.
        slow_hints: Whether time may pass before a hint is answered.
    """

    row: Bucket | None
    plans: tuple[tuple[Plan, ...], ...]
    times_s: tuple[float, ...] = (0.0,)
    lost: int = 0
    foreign: tuple[Callable[[Bucket, int], Bucket | None], ...] = ()
    slow_reads: bool = False
    slow_hints: bool = True
    hinted: frozenset[int] = field(default_factory=frozenset)

    def start(self) -> State:
        clients = tuple(Client(writer=Frozen(RowWriter())) for _ in self.plans)
        version = Version(writer=UUID(int=1), tags=Tags(), row_version=5)
        row = None if self.row is None else Stored(value=self.row, version=version)
        first = () if self.row is None else self.row.leases
        holders = tuple(Holder(one.lease_id, one.runs, one.until_us) for one in first)
        return State(row=row, clients=clients, lost=self.lost, hints=self.hinted, holders=holders)

    def describe(self, state: State) -> str:
        return f"{state.row}\n{[client[1:] for client in state.clients]}\n{state.holders}"

    def broken(self, state: State) -> str | None:
        if state.fault is not None:
            return state.fault
        return self._lost_by_its_holder(state) or self._left_over(state) or self._held_up(state)

    def steps(self, state: State) -> Iterator[Step]:
        if state.fault is not None:
            return
        for number, client in enumerate(state.clients):
            for name, after in self._client(state, number, client):
                yield f"C{number}: {name}", after
        if state.at + 1 < len(self.times_s) and self._time_may_pass(state):
            after = state._replace(at=state.at + 1)
            for number in range(len(state.clients)):
                after = self._step(after, number, Tick())
            yield f"it is {self.times_s[state.at + 1]} s", after
        for at, one in enumerate(state.floating):
            rest = state.floating[:at] + state.floating[at + 1 :]
            yield "a late CAS arrives", self._arrives(state._replace(floating=rest), one)[0]
        if state.foreign < len(self.foreign) and (state.row is not None or state.low):
            yield from self._others(state)

    def _time_may_pass(self, state: State) -> bool:
        return self.slow_hints or not any(client.hints for client in state.clients)

    # --- a client ---------------------------------------------------------------------------------
    def _client(self, state: State, number: int, client: Client) -> Iterator[Step]:
        plans = self.plans[number]
        if len(client.asked) < len(plans) and plans[len(client.asked)].after <= state.foreign:
            yield self._queue(state, number, client, plans[len(client.asked)])
        for one in client.asked:
            if plans[one.ticket - 1].leaves and not one.has_left:
                gone = self._asked(state, number, one._replace(has_left=True))
                holders = self._without_held(state, number, one)
                after = gone._replace(holders=holders)
                yield f"{one.ticket} leaves", self._step(after, number, Left(ticket=one.ticket))
        if client.read is not None:
            yield from self._reading(state, number, client.read)
        if client.hints:
            minutes = tuple(sorted(client.hints))
            after = state._replace(hints=state.hints | client.hints)
            after = self._with(after, number, hints=frozenset())
            yield "hints are written", self._step(after, number, Hinted(minutes=minutes))
        if client.cas is not None:
            yield from self._sending(state, number, client.cas, client.cas_is)
        if client.is_pausing:
            after = self._with(state, number, is_pausing=False)
            yield "its pause is over", self._step(after, number, PauseOver())
        if client.is_granted:
            after = self._with(state, number, is_granted=False)
            yield "its turn is over", self._step(after, number, TurnOver())

    def _queue(self, state: State, number: int, client: Client, plan: Plan) -> Step:
        ticket = len(client.asked) + 1
        at = None if state.row is None else state.row.version.writer
        asked = Asked(ticket=ticket, at=at, since_us=self._now_us(state))
        after = self._with(state, number, asked=(*client.asked, asked))
        event = Queued(
            ticket=ticket,
            intent=plan.wants,
            deadline_s=self.times_s[state.at] + plan.within_s,
            company_until_s=self.times_s[state.at] + plan.company_s if plan.company_s else -1.0,
            known=state.row if plan.looks else None,
        )
        if isinstance(plan.wants, Settle):
            for ask in plan.wants.asks:
                after = after._replace(holders=oracles.settled(after.holders, ask))
        return f"{ticket} comes: {type(plan.wants).__name__}", self._step(after, number, event)

    def _reading(self, state: State, number: int, read: tuple[bool, Row | None]) -> Iterator[Step]:
        has_seen, seen = read
        row = seen if has_seen else state.row
        after = self._with(state, number, read=None)
        yield "reads the row", self._step(after, number, RowRead(row=row))
        if self.slow_reads and not has_seen:
            after = self._with(state, number, read=(True, state.row))
            yield "its read has seen the row", after
        if state.lost and not has_seen:
            after = self._with(state, number, read=None)._replace(lost=state.lost - 1)
            yield "cannot read", self._step(after, number, RowRead(error=TimeoutError()))

    def _sending(self, state: State, number: int, cas: SendCas, where: str) -> Iterator[Step]:
        if where == "sent":
            after, is_applied = self._arrives(state, cas)
            said = "applied" if is_applied else "refused"
            yield f"its CAS is {said}", self._ended(after, number, cas)
            if state.lost:
                unheard = after._replace(lost=after.lost - 1)
                yield f"its CAS is {said}, unheard", self._with(unheard, number, cas_is="unheard")
                later = state._replace(lost=state.lost - 1, floating=(*state.floating, cas))
                yield "its CAS is late, and given up", self._given_up(later, number)
        else:
            yield "its CAS is sent again", self._ended(state, number, cas)
            yield "its CAS is given up", self._given_up(state, number)

    def _given_up(self, state: State, number: int) -> State:
        after = self._with(state, number, cas=None, cas_is="")
        return self._step(after, number, CasEnded(fate=Fate.OPEN))

    def _ended(self, state: State, number: int, cas: SendCas) -> State:
        """The last word of `store.cas.CasSender.send`."""
        row, base = state.row, cas.before.row_version
        if row is not None and row.version.tags.has(cas.mark):
            fate = Fate.APPLIED
        else:
            is_evicted = row is not None and row.version.tags.evicted > base
            fate = Fate.EVICTED if is_evicted else Fate.REFUSED
        pauses = 0 if fate is Fate.APPLIED else state.clients[number].pauses
        after = self._with(state, number, cas=None, cas_is="", pauses=pauses)
        return self._step(after, number, CasEnded(fate=fate, now=row))

    def _arrives(self, state: State, cas: SendCas) -> tuple[State, bool]:
        if state.row is None or state.row.version.writer != cas.before.writer:
            return state, False
        client = next(n for n, one in enumerate(state.clients) if cas.mark.int >> 32 == n + 1)
        row = _written(state.row, cas.row, UUID(int=100 + client), cas.mark)
        return state._replace(row=row, landed=state.landed | {cas.mark}), True

    # --- what a writer does -----------------------------------------------------------------------
    def _step(self, state: State, number: int, event: Event) -> State:
        client = state.clients[number]
        writer = client.writer.thawed()
        outputs = writer.step(event, self._moment(state, number))
        state = self._with(state, number, writer=Frozen(writer))
        if writer.wake_at_s <= self.times_s[state.at]:
            state = state._replace(fault="a writer wants to be woken again and again")
        if isinstance(event, CasEnded):
            state = self._late_hints(state, event, client, outputs)
        for output in outputs:
            state = self._carry_out(state, number, output)
        return state

    def _carry_out(self, state: State, number: int, output: Any) -> State:
        match output:
            case ReadRow():
                return self._with(state, number, read=(False, None), pauses=0)
            case WriteHints(minutes=minutes):
                hints = state.clients[number].hints | frozenset(minutes)
                return self._with(state, number, hints=hints)
            case Pause():
                pauses = state.clients[number].pauses + 1
                return self._with(state, number, is_pausing=True, pauses=pauses)
            case Granted():
                return self._with(state, number, is_granted=True)
            case SendCas():
                return self._sends(state, number, output)
            case Answer():
                return self._answered(state, number, output)
        raise AssertionError(output)

    def _sends(self, state: State, number: int, cas: SendCas) -> State:
        client = state.clients[number]
        sent = client.writer.writer._sent
        assert sent is not None
        known = client.writer.writer._known
        assert known is not None
        moment = self._moment(state, number)
        fault = oracles.fault_of_cas(cas, known.value, sent, moment, state.hints)
        if client.pauses > 1:
            fault = fault or "a CAS is made from a row of before a long pause"
        waiting = client.writer.writer._waiting.entries
        fault = fault or oracles.overtaken(sent.entries, waiting)
        for one in client.asked:
            if one.ticket in cas.tickets:
                if one.sends and isinstance(self.plans[number][one.ticket - 1].wants, Claim):
                    fault = fault or "a claim is folded twice"
                if one.has_left:
                    fault = fault or "what was not sent is sent after its caller has left"
                has_effect = oracles.has_effect(sent.folded.effects[one.ticket].result)
                does = (*one.does, cas.mark) if has_effect else one.does
                after = one._replace(sends=(*one.sends, cas.mark), does=does)
                state = self._asked(state, number, after)
        state = state._replace(fault=state.fault or fault)
        return self._with(state, number, cas=cas, cas_is="sent", sends=client.sends + 1)

    def _answered(self, state: State, number: int, answer: Answer) -> State:
        client = state.clients[number]
        asked = client.asked[answer.ticket - 1]
        plan = self.plans[number][answer.ticket - 1]
        fault = self._fault_of_answer(state, asked, plan, answer)
        if asked.end is not None:
            fault = fault or "a caller is answered twice"
        state = self._asked(state, number, asked._replace(end=answer.end))
        state = state._replace(fault=state.fault or fault)
        if isinstance(answer.result, Claimed) and answer.result.leases:
            is_ghost = state.low and answer.reads_low
            told = () if is_ghost else answer.result.leases
            held = tuple(Holder(one.lease_id, one.runs, one.until_us) for one in told)
            twice = oracles.held_twice(state.holders, held, self._now_us(state))
            state = state._replace(holders=(*state.holders, *held), fault=state.fault or twice)
            if not plan.leaves:
                state = self._step(state, number, Taken(ticket=answer.ticket))
        return state

    def _fault_of_answer(  # noqa: PLR0911 - one per kind of answer
        self, state: State, asked: Asked, plan: Plan, answer: Answer
    ) -> str | None:
        has_landed = any(mark in state.landed for mark in asked.does)
        if answer.end in {End.LOST, End.NOT_SENT, End.CONTENDED}:
            if state.row is None or state.low or not (has_landed or self._may_land(state, asked)):
                return None
            return f"a caller is told that it is {answer.end}, and it happened or may yet"
        if answer.end is End.AMBIGUOUS:
            return None if asked.sends else "what was never sent is called ambiguous"
        result, row = answer.result, state.row
        is_unchanged = row is not None and asked.at == row.version.writer
        if isinstance(result, Judged):
            return oracles.fault_of_verdict(
                row if is_unchanged else None,
                plan.wants,
                result,
                has_landed=has_landed,
                is_low=state.low,
                reads_low=answer.reads_low,
            )
        if not isinstance(result, Claimed):
            return None
        if oracles.not_in(answer.row, result.leases):
            return "a claim is told what the row does not hold"
        if result.leases and state.low and not answer.reads_low:
            return "messages of a dropped bucket are handed out"
        was_given = any(mark in state.landed for mark in asked.sends)  # to others of its fold
        if not result.leases and is_unchanged and not (was_given or state.low or row is None):
            is_there = oracles.claimable(row.value, self._now_us(state))
            return "a claim is told that nothing is there, and there is" if is_there else None
        return None

    @staticmethod
    def _may_land(state: State, asked: Asked) -> bool:
        """Whether a CAS of it is in the air, and the row is still as it wants it."""
        sent = [*state.floating, *(one.cas for one in state.clients if one.cas is not None)]
        writer = None if state.row is None else state.row.version.writer
        return any(one.mark in asked.does and one.before.writer == writer for one in sent)

    def _late_hints(
        self, state: State, event: CasEnded, client: Client, outputs: tuple[Any, ...]
    ) -> State:
        """A hint whose minute may have been passed is written again, now [T4]."""
        sent = client.writer.writer._sent
        if event.fate is not Fate.APPLIED or sent is None:
            return state
        now_us = self._now_us(state)
        late = [
            time_us
            for effect in sent.folded.effects.values()
            for time_us in effect.times_us
            if is_passable(minute_of(max(time_us, sent.sent_us)), now_us=now_us + LATE_AFTER_US)
        ]
        again = {m for out in outputs if isinstance(out, WriteHints) for m in out.minutes}
        if late and minute_of(now_us) not in again | state.hints | client.hints:
            return state._replace(fault="a hint that came late is not written again")
        return state

    # --- others -----------------------------------------------------------------------------------
    def _others(self, state: State) -> Iterator[Step]:
        change = self.foreign[state.foreign]
        base = self.row if state.row is None else state.row.value
        assert base is not None
        new = change(base, self._now_us(state))
        after = state._replace(foreign=state.foreign + 1)
        mark = UUID(int=50 + state.foreign)
        if new is None:
            yield "the bucket is dropped", after._replace(row=None, low=True)
        elif state.row is None:
            version = Version(writer=UUID(int=1), tags=Tags(), row_version=5)
            yield "its ghost comes back", after._replace(row=Stored(value=new, version=version))
        else:
            row = _written(state.row, new, UUID(int=99), mark)
            yield "another client changes the row", after._replace(row=row)

    # --- invariants of a state --------------------------------------------------------------------
    def _lost_by_its_holder(self, state: State) -> str | None:
        if state.row is None or state.low:
            return None
        for one in state.holders:
            if self._now_us(state) > one.until_us:
                continue
            held = [part.runs for part in state.row.value.leases if part.lease_id == one.lease_id]
            if not (one.runs - state.row.value.purged).issubset(union(held)):
                return "I2: whoever holds a message has lost it before its lease was over"
        return None

    def _left_over(self, state: State) -> str | None:
        """Nobody holds what nobody was told of, as far as a client that has no work has seen."""
        if state.row is None or state.low:
            return None
        told = {(one.lease_id, offset) for one in state.holders for offset in one.runs.offsets()}
        for number, client in enumerate(state.clients):
            writer = client.writer.writer
            known = writer._known
            is_at_work = client.read or client.cas or client.is_pausing or writer._waiting.entries
            # What could not be given back within a second runs out by itself.
            is_at_work = is_at_work or state.at > 0
            if is_at_work or known is None or known.version != state.row.version:
                continue
            for lease in state.row.value.leases:
                is_its = lease.lease_id.int >> 32 == number + 1
                if is_its and any((lease.lease_id, at) not in told for at in lease.runs.offsets()):
                    return "what was claimed for a caller that is gone stays leased"
        return oracles.counted(state.row.value, self.row)

    def _held_up(self, state: State) -> str | None:
        """An ack waits no longer than a second for another one's hint."""
        for number, client in enumerate(state.clients):
            asked_until = client.writer.writer._hints.asked.values()
            is_busy = client.cas or client.read or client.is_pausing or client.is_granted
            if is_busy or not asked_until or max(asked_until) > self.times_s[state.at]:
                continue
            for one, plan in zip(client.asked, self.plans[number], strict=False):
                is_ack = isinstance(plan.wants, Settle) and plan.wants.is_plain_ack
                if is_ack and one.end is None and not one.has_left:
                    return "I10: an ack waits for another one's hint"
        return None

    # --- small things -----------------------------------------------------------------------------
    def _now_us(self, state: State) -> int:
        return START_US + round(self.times_s[state.at] * SECOND_US)

    def _moment(self, state: State, number: int) -> Moment:
        return Moment(
            now_us=self._now_us(state),
            at_s=self.times_s[state.at],
            spare_us=0,
            new_id=oracles.ids(number + 1, state.clients[number].sends),
        )

    @staticmethod
    def _with(state: State, number: int, **changes: Any) -> State:
        clients = list(state.clients)
        clients[number] = clients[number]._replace(**changes)
        return state._replace(clients=tuple(clients))

    def _asked(self, state: State, number: int, changed: Asked) -> State:
        asked = list(state.clients[number].asked)
        asked[changed.ticket - 1] = changed
        return self._with(state, number, asked=tuple(asked))

    @staticmethod
    def _without_held(state: State, number: int, one: Asked) -> tuple[Holder, ...]:
        """Who leaves holds nothing any more; who was told is found by the writer's own note."""
        untaken = state.clients[number].writer.writer._untaken.get(one.ticket, ())
        gone = {(part.lease_id, part.runs) for part in untaken}
        return tuple(held for held in state.holders if (held.lease_id, held.runs) not in gone)


def _written(row: Row, value: Bucket, client: UUID, mark: UUID) -> Row:
    number = row.version.row_version + 1
    tag = Tag(client=client, writer=mark, row_version=number)
    version = Version(writer=mark, tags=row.version.tags.with_tag(tag), row_version=number)
    return Stored(value=value, version=version)
