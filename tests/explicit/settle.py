"""What a consumer does with what it got, and the change of a row that all of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.settlement import Update
from tests.explicit.network import Network, Step, idle
from tests.explicit.states import (
    TICK_US,
    Client,
    Receipt,
    Row,
    State,
    Statement,
    mask,
    offsets_in,
    runs_of,
    with_client,
)

VISIBILITY_US = TICK_US // 2
"""A lease ends within a tick: at the next one, margin and all, it may be re-claimed."""


class Settle(Network):
    """Ack, release, extend, update (queue/settle/settle.py, lane.py)."""

    def _verbs(self, state: State, number: int, client: Client, one: Receipt) -> Iterator[Step]:
        part = one._replace(offsets=one.offsets & -one.offsets)
        for verb in self.size.verbs:
            kind, _, extent = verb.partition(" ")
            if extent == "old" or (extent == "part" and part == one):
                continue
            receipt = part if extent == "part" or kind == "update" else one
            # An ack begins with the row as last seen: a stale one only loses its CAS.
            row = client.row if kind == "ack" and client.row is not None else state.row
            yield self._begin(state, number, client, kind, receipt, row)

    def _begin(  # noqa: PLR0917 - who, what, on which row
        self, state: State, number: int, client: Client, kind: str, one: Receipt, row: Row | None
    ) -> Step:
        left = []
        for receipt in client.held:
            is_given_up = receipt.serial == one.serial and kind not in ("extend", "update")
            kept = receipt.offsets & ~one.offsets if is_given_up else receipt.offsets
            if kept:
                left.append(receipt._replace(offsets=kept))
        old = None if one == client.old else client.old
        client = client._replace(held=tuple(left), moves=client.moves - 1, old=old)
        name = f"{self._who(number)} begins to {kind} {_text(one)}"
        return name, self._change(state, number, client, kind, one, row)

    def _change(  # noqa: PLR0917 - who, what, on which row
        self,
        state: State,
        number: int,
        client: Client,
        kind: str,
        receipt: Receipt,
        row: Row | None,
        *,
        is_evicted: bool = False,
    ) -> State:
        """`Lane.change_bucket`: leave it if what the receipt names is not there, else a CAS."""
        value = None if row is None else row.value
        if kind == "take out of the dead":
            is_there = value is not None and any(one.set_id == receipt.serial for one in value.dead)
        elif kind == "close the dead":
            is_there = value is not None and any(one.is_open for one in value.dead)
        else:
            lease = None if value is None else self.rules.found(value, receipt)
            is_there = lease is not None and (
                kind != "update" or bool(mask(lease.runs) & receipt.offsets)
            )
        if value is None or not is_there:
            # No row: a dropped bucket counts as acked [P12]. Evicted: the tags cannot tell [R8].
            is_gone = row is None or (state.low and self.rules.ack_expires_above_low)
            is_expired = not is_gone and not is_evicted
            return self._passed_over(state, number, client, kind, receipt, is_expired=is_expired)

        def compute(new_id: Callable[[], UUID]) -> tuple[Any, ...]:
            changed, after = self._changed(value, kind, receipt, state.now_us, new_id)
            return changed, (), receipt, after

        return self._send(state, number, client, kind, row, compute, receipt)

    def _changed(  # noqa: PLR0911 - one per verb
        self, row: Bucket, kind: str, receipt: Receipt, now_us: int, new_id: Callable[[], UUID]
    ) -> tuple[Bucket, Receipt | None]:
        rules, lease_id = self.rules, receipt.lease_id
        runs = {lease_id: runs_of(receipt.offsets)}
        later_us = now_us + TICK_US + VISIBILITY_US
        match kind:
            case "ack":
                return rules.ack(row, runs, now_us=now_us), None
            case "release":
                return rules.release(row, runs, now_us=now_us), None
            case "delay":
                due_us = now_us + TICK_US
                return rules.release(row, runs, now_us=now_us, due_us=due_us), None
            case "late release":
                return rules.release(row, runs, now_us=now_us, count_delivery=False), None
            case "extend":
                after = receipt._replace(until_us=later_us)
                return rules.extend(row, runs, until_us=later_us, now_us=now_us), after
            case "update":
                fresh = new_id()
                changed = rules.revise(
                    row,
                    lease_id,
                    next(offsets_in(receipt.offsets)),
                    Update(revision=fresh.int, new_lease_id=fresh, visibility_us=later_us - now_us),
                    now_us=now_us,
                )
                has_id = changed.lease(fresh) is not None
                after = Receipt(fresh, fresh if has_id else lease_id, receipt.offsets, later_us)
                return changed, after
            case "close the dead":
                return rules.with_closed_sets(row, now_us=now_us), None
        return rules.without_dead(row, receipt.serial, now_us=now_us), None

    def _done(self, state: State, number: int, client: Client, statement: Statement) -> State:
        """It took effect, and its client knows."""
        receipt, after = statement.receipt, statement.after
        assert receipt is not None
        if self._is_repair(number):
            return with_client(state, number, client._replace(at="repair", row=None))
        told = offsets_in(statement.gone if statement.kind == "ack" else 0)
        if any(state.acked_by[offset] != receipt.serial for offset in told):
            state = state._replace(fault="I3: an ack that did not take effect is confirmed")
        held_now: list[Receipt] = []
        for one in client.held:
            rest = one
            if after is not None and one.serial == receipt.serial:
                rest = one._replace(offsets=one.offsets & ~receipt.offsets)
            held_now += [rest] if rest.offsets else []
        if after is not None:
            held_now.append(after)
        old = receipt if statement.kind in ("update", "release") else client.old
        if "ack old" not in self.size.verbs:
            old = None
        client = idle(client)._replace(held=tuple(held_now), old=old)
        return with_client(state, number, client)

    def _passed_over(
        self,
        state: State,
        number: int,
        client: Client,
        kind: str,
        receipt: Receipt,
        *,
        is_expired: bool,
    ) -> State:
        """What it named is not there: the receipt is called expired, and must be."""
        if self._is_repair(number):
            return with_client(state, number, client._replace(at="repair", row=None))
        was_acked = any(
            state.acked_by[offset] == receipt.serial for offset in offsets_in(receipt.offsets)
        )
        if kind == "ack" and was_acked and is_expired:
            state = state._replace(fault="I3: an ack that took effect is called expired")
        left = tuple(one for one in client.held if one.serial != receipt.serial)
        return with_client(state, number, idle(client)._replace(held=left))


def _text(receipt: Receipt) -> str:
    return "offset " + ", ".join(map(str, offsets_in(receipt.offsets)))
