"""One bucket and everybody who works on it, step by step: production's rules in an explicit model.

What a step *computes* is computed by `cassieq_spark.model`, what a CAS leaves beside the row by
`cassieq_spark.store.cas`; the order of the steps is that of `queue/seal.py`, `claim.py`,
`settle.py` and `lane.py`; docs/design/put.md and repair.md have put and repair. Between two steps
of one client anything may happen: steps of others, a tick, a statement landing whose answer was
lost.

A CAS that was not answered is in the air: it may take effect now, later or never, and its client
sends the same statement again until it is answered (G3), or gives up. Kept out: hints (they cost
latency only), the dropping of message rows (here they resurrect, which is worse), and
``changed_us``, which no rule reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from uuid import UUID

from cassieq_spark.model import bucket as bucket_rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import union
from tests.explicit.clients import Clients
from tests.explicit.network import Rules, Size, Step
from tests.explicit.states import (
    START_US,
    Client,
    Receipt,
    State,
    describe,
    mask,
    remember,
    with_client,
)

__all__ = ["Rules", "Size", "World"]

SETUP = 9
"""Whose CAS sealed a bucket that begins sealed."""

ALONE_TICKS = 4
ALONE_STEPS = 400
"""A consumer that is alone and still at work after so many steps goes in circles."""

ENDED = frozenset({"crashed", "acknowledged", "again", "ambiguous"})


class World(Clients):
    """The model that is explored."""

    def start(self) -> State:
        size = self.size
        everything = (1 << size.offsets) - 1
        consumer = Client("idle", gets=size.gets, moves=size.moves)
        clients = [Client("write")] * size.producers + [consumer] * size.consumers
        if size.has_repair:
            clients.append(Client("repair"))
        row = None
        if not size.producers:
            value = self._sealed(bucket_rules.sealing(now_us=START_US), everything, START_US)
            row = self._row(None, value, client=SETUP, number=0)
        nobody: tuple[UUID | None, ...] = (None,) * size.offsets
        return State(
            now=0,
            row=row,
            low=0,
            rows=0 if size.producers else everything,
            late=0,
            air=(),
            clients=tuple(clients),
            lost=size.lost,
            crashes=size.crashes,
            timeouts=size.timeouts,
            manifest=-1 if size.producers else everything,
            acknowledged=0 if size.producers else everything,
            current=nobody,
            acked_by=nobody,
            acked=0,
            handed=(0,) * size.offsets,
            moved=0,
            moved_sets=frozenset(),
            fault=None,
        )

    def steps(self, state: State) -> Iterator[Step]:
        if state.now < self.size.ticks:
            yield "the clock ticks", self._tick(state)
        for offset in range(self.size.offsets):
            if state.late >> offset & 1:
                bit = 1 << offset
                rows, late = state.rows | bit, state.late & ~bit
                yield f"the late row {offset} lands", state._replace(rows=rows, late=late)
        for at, statement in enumerate(state.air):
            if self._holds(state, statement):
                air = state.air[:at] + state.air[at + 1 :]
                name = f"{self._who(statement.client)}'s {statement.kind}, sent before, lands"
                yield name, remember(state._replace(air=air), statement)
        for number, client in enumerate(state.clients):
            if client.at in ENDED:
                continue
            yield from getattr(self, f"_at_{client.at}")(state, number, client)
            if state.crashes:
                yield f"{self._who(number)} crashes", self._crash(state, number, client)

    def broken(self, state: State) -> str | None:  # noqa: PLR0911 - one per invariant
        row = state.row
        if state.fault is not None:
            return state.fault
        for one, other in combinations(_receipts(state), 2):
            if one.offsets & other.offsets and min(one.until_us, other.until_us) >= state.now_us:
                return "I2: two consumers hold one message"
        over = state.acked | state.moved
        waiting = state.acknowledged & ~over
        if state.low:
            left = waiting | (max(state.manifest, 0) & ~over)
            return "I1: a message was dropped that nobody acked" if left else None
        if row is not None and row.broken:
            return row.broken
        if row is not None and row.unacked & ~row.dead & over:
            return "I4: what is over is there again"
        if state.manifest < 0:
            lost = waiting & ~state.rows
        else:
            there = row.unacked & state.manifest if row is not None else 0
            lost = (waiting | state.manifest & ~over) & ~there
        if lost:
            return "I1: an acknowledged message is nowhere"
        if waiting & ~self._got_alone(state):
            return "I10: a consumer that runs alone never gets an acknowledged message"
        return None

    def describe(self, state: State) -> str:
        row = "no row" if state.row is None else describe(state.row.value)
        return f"tick {state.now}, L={state.low}, rows {state.rows:b}: {row}"

    # --- what everybody may do --------------------------------------------------------------------
    def _tick(self, state: State) -> State:
        """Receipts that nobody can use any more are forgotten: the state is then one with fewer."""
        state = state._replace(now=state.now + 1)
        clients = tuple(
            client
            if client.moves or not client.held
            else client._replace(
                held=tuple(one for one in client.held if one.until_us >= state.now_us)
            )
            for client in state.clients
        )
        return state._replace(clients=clients)

    def _crash(self, state: State, number: int, client: Client) -> State:
        """What it sent may still land. Repair is started again, a client is not."""
        air = state.air
        if client.sent is not None and client.sent not in air:
            air = (*air, client.sent)
        after = Client("crashed")
        if self._is_repair(number):
            after = Client("repair", made=client.made)
        return with_client(state._replace(air=air, crashes=state.crashes - 1), number, after)

    # --- repair (docs/design/repair.md) -----------------------------------------------------------
    def _at_repair(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.row
        if row is None:
            return
        if state.low:
            yield "repair deletes a ghost", state._replace(row=None)
        elif row.value.status is Status.DRAINED:
            after = client._replace(at="raise" if self.rules.raises_low_first else "delete")
            yield "repair finds the bucket drained", with_client(state, number, after)
        elif self.rules.movable(row.value.dead):
            after = client._replace(at="move", row=row)
            yield "repair finds a closed dead set", with_client(state, number, after)
        elif row.value.dead:
            one = row.value.dead[0]
            receipt = Receipt(one.set_id, one.set_id, row.dead, 0)
            after = self._change(state, number, client, "close the dead", receipt, row)
            yield "repair closes the open dead set", after

    def _at_raise(self, state: State, number: int, client: Client) -> Iterator[Step]:
        after = client._replace(at="delete" if self.rules.raises_low_first else "repair")
        yield "repair raises L", with_client(state._replace(low=1), number, after)

    def _at_delete(self, state: State, number: int, client: Client) -> Iterator[Step]:
        after = client._replace(at="repair" if self.rules.raises_low_first else "raise")
        yield "repair deletes the row", with_client(state._replace(row=None), number, after)

    def _at_move(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """One transaction per set: the sink row that is named by its id decides it once [P24]."""
        assert client.row is not None
        dead = self.rules.movable(client.row.value.dead)[0]
        set_id = dead[0].set_id
        bits = mask(union(one.runs for one in dead))
        if set_id not in state.moved_sets:
            fault = "I4: a dead message is moved twice" if bits & state.moved else state.fault
            moved_sets = state.moved_sets | {set_id}
            state = state._replace(moved=state.moved | bits, moved_sets=moved_sets, fault=fault)
        receipt = Receipt(set_id, set_id, bits, 0)
        client = client._replace(row=None)
        after = self._change(state, number, client, "take out of the dead", receipt, state.row)
        yield "repair moves a dead set", after

    # --- I10: nothing blocks ----------------------------------------------------------------------
    def _got_alone(self, state: State) -> int:
        """What a fresh consumer gets if nobody else does anything any more; dead counts as got."""
        key = (state.row, state.rows, state.low, state.now)
        if key not in self._alone:
            size = replace(self.size, producers=0, consumers=1, has_repair=False, verbs=("ack",))
            self._alone[key] = World(size=size, rules=self.rules)._run_alone(state)
        return self._alone[key]

    def _run_alone(self, state: State) -> int:
        fresh = Client("idle", gets=99, moves=99, made=1_000)
        nobody = (None,) * self.size.offsets
        state = state._replace(
            late=0,
            air=(),
            clients=(fresh,),
            lost=0,
            handed=(0,) * self.size.offsets,
            current=nobody,
            acked_by=nobody,
        )
        end = state.now + ALONE_TICKS
        steps = 0
        while state.now <= end and steps < ALONE_STEPS:
            before = state
            while options := list(getattr(self, f"_at_{fresh.at}")(state, 0, fresh)):
                state = options[0][1]
                steps += 1
                if steps >= ALONE_STEPS:
                    break
                fresh = state.clients[0]
                if fresh.at == "idle" and not fresh.held:
                    break
            if state.row is before.row:
                state = self._tick(state)
            fresh = Client("idle", gets=99, moves=99, made=fresh.made)
            state = with_client(state, 0, fresh)
        got = sum(1 << offset for offset, count in enumerate(state.handed) if count)
        return got | (state.row.dead if state.row is not None else 0)


def _receipts(state: State) -> list[Receipt]:
    return [one for client in state.clients for one in client.held]
