"""What clients do, one step at a time, in production's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from cassieq_spark.model import bucket as bucket_rules
from cassieq_spark.model.bucket import MEANS_NOTHING_ALONE, Bucket, Lease, Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.lease import Terms
from cassieq_spark.queue.get.claim import held
from tests.explicit.network import Step, idle
from tests.explicit.settle import VISIBILITY_US, Settle
from tests.explicit.states import (
    START_US,
    TICK_US,
    Client,
    Receipt,
    Row,
    State,
    Statement,
    mask,
    runs_of,
    with_client,
)

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane

BUCKET = BucketNo(0)
NO_LANE = cast("Lane", None)
"""What a claim is kept with; the world has one lane, and reads it itself."""


class Clients(Settle):
    """Producers and consumers."""

    def _settled(  # noqa: PLR0911 - one per kind and outcome
        self, state: State, number: int, statement: Statement, outcome: str
    ) -> State:
        """What its client does when a CAS is answered; the row is as it was read since."""
        client = state.clients[number]._replace(sent=None, is_unsure=False)
        row, kind = state.row, statement.kind
        if kind == "insert of sealing":
            return self._finish(state, number, client, row)
        if kind in ("seal", "claim"):
            if number < self.size.producers:
                return with_client(state, number, client._replace(at="check", row=None))
            leases = statement.leases if kind == "claim" or outcome == "applied" else ()
            got = held(NO_LANE, BUCKET, None if row is None else row.stored, leases)
            if got and not (state.low and self.rules.get_hands_out_above_low):
                return self._confirm(state, number, client, [one.lease for one in got])
            if kind == "seal" and not got:
                return self._claim(state, number, client, row)
            return with_client(state, number, idle(client))
        receipt = statement.receipt
        assert receipt is not None
        if outcome == "applied":
            return self._done(state, number, client, statement)
        return self._change(
            state, number, client, kind, receipt, row, is_evicted=outcome == "evicted"
        )

    def _give_up(self, state: State, number: int) -> State:
        client = state.clients[number]
        after = "ambiguous" if number < self.size.producers else "idle"
        after = "repair" if self._is_repair(number) else after
        return with_client(state, number, idle(client)._replace(at=after))

    # --- put (docs/design/put.md) -----------------------------------------------------------------
    def _at_write(self, state: State, number: int, client: Client) -> Iterator[Step]:
        bit = 1 << number
        check = client._replace(at="check" if self.rules.put_reads_row else "check_low")
        written = state._replace(rows=state.rows | bit)
        yield f"P{number}: its message is written", with_client(written, number, check)
        if state.timeouts:
            late = state._replace(late=state.late | bit, timeouts=state.timeouts - 1)
            name = f"P{number}: its write times out: it closes the bucket"
            yield name, self._close(late, number, client)

    def _at_check(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.row
        if row is None:
            after = client._replace(at="check_low")
            yield f"P{number} finds no row", with_client(state, number, after)
        elif row.value.status is Status.SEALING:
            after = client._replace(at="help", row=row)
            yield f"P{number} finds the bucket sealing", with_client(state, number, after)
        elif self.rules.put_judges_above_low:
            after = client._replace(at="judge", row=row)
            yield f"P{number} finds the bucket sealed", with_client(state, number, after)
        else:
            yield self._judge(state, number, client, row)

    def _at_judge(self, state: State, number: int, client: Client) -> Iterator[Step]:
        assert client.row is not None
        if state.low:
            after = client._replace(at="ambiguous", row=None)
            yield f"P{number} reads L=1: ambiguous", with_client(state, number, after)
        else:
            yield self._judge(state, number, client, client.row)

    def _judge(self, state: State, number: int, client: Client, row: Row) -> Step:
        if row.manifest >> number & 1:
            return f"P{number} is in the manifest: acknowledged", self._acknowledge(state, number)
        if max(state.manifest, 0) >> number & 1:
            state = state._replace(fault="I4: a message of the manifest is put again")
        again = client._replace(at="again", row=None)
        return f"P{number} is not in the manifest", with_client(state, number, again)

    def _at_check_low(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if state.low and self.rules.put_reads_low:
            after = client._replace(at="ambiguous")
            yield f"P{number} reads L=1: ambiguous", with_client(state, number, after)
        else:
            name = f"P{number} reads L={state.low}: acknowledged"
            yield name, self._acknowledge(state, number)

    def _acknowledge(self, state: State, number: int) -> State:
        after = state.clients[number]._replace(at="acknowledged", row=None)
        state = state._replace(acknowledged=state.acknowledged | 1 << number)
        return with_client(state, number, after)

    # --- seal (queue/seal.py) ---------------------------------------------------------------------
    # The code asks for L and the rows side by side. L only grows: whoever may go on by what it says
    # later may by what it said before the scan, so this order stands for both.
    def _close(self, state: State, number: int, client: Client) -> State:
        value = bucket_rules.sealing(now_us=state.now_us)
        seen = -1 if self.rules.scans_after_insert else state.rows
        state = self._send(
            state, number, client, "insert of sealing", None, lambda _: (value, (), None, None)
        )
        return with_client(state, number, state.clients[number]._replace(seen=seen))

    def _finish(self, state: State, number: int, client: Client, row: Row | None) -> State:
        if row is not None and row.value.status is Status.SEALING:
            return with_client(state, number, client._replace(at="help", row=row))
        if number >= self.size.producers:
            return self._claim(state, number, client, row)
        after = "ambiguous" if row is None else "check"
        return with_client(state, number, client._replace(at=after, row=None, seen=0))

    def _at_help(self, state: State, number: int, client: Client) -> Iterator[Step]:
        who = f"{self._who(number)}, sealing, reads L={state.low}"
        if state.low and self.rules.seal_reads_low:
            yield f"{who}: leaves it", self._give_up(state, number)
        elif self.rules.scans_after_insert or client.seen < 0:
            after = client._replace(at="scan", seen=0, page=0)
            yield who, with_client(state, number, after)
        else:
            yield who, self._fill(state, number, client)

    def _at_scan(self, state: State, number: int, client: Client) -> Iterator[Step]:
        bit = 1 << client.page
        is_there = bool(state.rows & bit)
        name = (
            f"{self._who(number)} scans row {client.page}: {'there' if is_there else 'not there'}"
        )
        client = client._replace(seen=client.seen | state.rows & bit, page=client.page + 1)
        if client.page < self.size.offsets:
            yield name, with_client(state, number, client)
        else:
            yield name, self._fill(state, number, client)

    def _fill(self, state: State, number: int, client: Client) -> State:
        row = client.row
        assert row is not None

        def compute(new_id: Callable[[], UUID]) -> tuple[Any, ...]:
            value = self._sealed(row.value, client.seen, state.now_us)
            leases: tuple[Lease, ...] = ()
            if number >= self.size.producers:
                value, leases = self.rules.claim(value, self._terms(state, number), new_id)
            return value, leases, None, None

        return self._send(state, number, client, "seal", row, compute, client.seen)

    def _sealed(self, row: Bucket, seen: int, now_us: int) -> Bucket:
        due = {offset: START_US + TICK_US for offset in self.size.delayed if seen >> offset & 1}
        return self.rules.sealed(
            row, manifest=runs_of(seen), due_us=due, size_bytes=0, now_us=now_us
        )

    # --- get (queue/get/scan.py, reader.py, claim.py) ---------------------------------------------
    def _at_idle(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if client.moves:
            for receipt in client.held:
                yield from self._verbs(state, number, client, receipt)
            if client.old is not None and "ack old" in self.size.verbs:
                yield self._begin(state, number, client, "ack", client.old, state.row)
        if client.gets and not state.low:
            after = client._replace(at="look", row=None)
            yield f"{self._who(number)} reads the pointers", with_client(state, number, after)

    def _at_look(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.row
        client = client._replace(gets=client.gets - 1)
        if row is None or row.value.status in MEANS_NOTHING_ALONE:
            after = client._replace(at="look_low")
            yield f"{self._who(number)} finds no sealed row", with_client(state, number, after)
        else:
            yield f"{self._who(number)} reads the row", self._claim(state, number, client, row)

    def _at_look_low(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if state.low:
            yield f"{self._who(number)} reads L=1", with_client(state, number, idle(client))
        elif state.rows or state.row is not None:
            yield f"{self._who(number)} reads L=0: closes it", self._close(state, number, client)

    def _terms(self, state: State, number: int) -> Terms:
        return Terms(
            at_most=self.size.at_most,
            owner=self._who(number),
            run=None,
            now_us=state.now_us,
            until_us=state.now_us + VISIBILITY_US,
            max_deliveries=self.size.max_deliveries,
        )

    def _claim(self, state: State, number: int, client: Client, row: Row | None) -> State:
        terms = self._terms(state, number)
        if row is None:
            return with_client(state, number, idle(client))

        def compute(new_id: Callable[[], UUID]) -> tuple[Any, ...]:
            return *self.rules.claim(row.value, terms, new_id), None, None

        sent = self._send(state, number, client, "claim", row, compute)
        statement = sent.clients[number].sent
        assert statement is not None
        if statement.leases or statement.new.value.dead != row.value.dead:
            return sent
        return with_client(state, number, idle(client))

    def _confirm(self, state: State, number: int, client: Client, got: list[Lease]) -> State:
        """Hand out what came in time. Of two late leases the second runs out by itself here."""
        client = idle(client)._replace(row=state.row)
        receipts = [
            Receipt(one.lease_id, one.lease_id, mask(one.runs), one.until_us) for one in got
        ]
        if got[0].until_us <= state.now_us:
            return self._change(state, number, client, "late release", receipts[0], state.row)
        handed = list(state.handed)
        fault = state.fault
        for lease in got:
            if mask(lease.runs) & (state.acked | state.moved | ~max(state.manifest, 0)):
                fault = "I4: what is over, or never was, is delivered"
            for offset in lease.runs.offsets():
                if lease.delivery_count <= handed[offset]:
                    fault = "I6: delivery counts do not grow"
                handed[offset] = lease.delivery_count
        client = client._replace(held=(*client.held, *receipts))
        state = state._replace(handed=tuple(handed), fault=fault)
        return with_client(state, number, client)
