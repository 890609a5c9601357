"""The values of the model of one bucket, and what its invariants remember of the past."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.expiry import DELAY_STEP_US
from cassieq_spark.model.ids import Runs, union

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from uuid import UUID

    from cassieq_spark.model.outcome import Stored

TICK_US = DELAY_STEP_US
START_US = 1_700_000_000 * TICK_US

OF_A_LEASE = frozenset({"ack", "release", "delay", "late release", "extend", "update"})
ENDING = frozenset({"release", "delay", "late release", "update"})
"""These end the delivery that their receipt names."""


@dataclass(eq=False, kw_only=True)
class Row:
    """A bucket row. Equal ones are one object (`World.row`), so that states compare fast."""

    stored: Stored[Bucket]

    @cached_property
    def value(self) -> Bucket:
        return self.stored.value

    @cached_property
    def manifest(self) -> int:
        return mask(self.value.manifest)

    @cached_property
    def unacked(self) -> int:
        return mask(self.value.unacked)

    @cached_property
    def dead(self) -> int:
        return mask(union(part.runs for part in self.value.dead))

    @cached_property
    def has_manifest(self) -> bool:
        return self.value.status in (Status.SEALED, Status.DRAINED)

    @cached_property
    def broken(self) -> str | None:
        value = self.value
        parts = [value.fresh, *(one.runs for one in value.returned)]
        parts += [one.runs for one in value.delayed]
        parts += [one.runs for one in value.leases]
        parts += [one.runs for one in value.dead]
        if sum(runs.count for runs in parts) != value.unacked.count:
            return "I2: a message is in two places"
        if self.has_manifest and value.is_empty is not (value.status is Status.DRAINED):
            return "I1: drained does not mean that nothing is left"
        return None


class Receipt(NamedTuple):
    """One delivery as a consumer has it. ``serial`` names the delivery, whatever its lease id."""

    serial: UUID
    lease_id: UUID
    offsets: int
    until_us: int


@dataclass(eq=False, kw_only=True)
class Statement:
    """A CAS as it is sent, each time the same. Equal ones are one object."""

    kind: str
    client: int
    before: Row | None
    new: Row
    leases: tuple[Lease, ...] = ()
    receipt: Receipt | None = None
    after: Receipt | None = None

    @cached_property
    def gone(self) -> int:
        """What is unacked no more."""
        return (self.before.unacked if self.before else 0) & ~self.new.unacked

    @cached_property
    def touches_others(self) -> bool:
        """Whether it changes anything but the lease that its receipt names, and what that held."""
        assert self.before is not None
        assert self.receipt is not None
        mine = {self.receipt.lease_id, self.after.lease_id if self.after else None}
        held_before = mask(
            union(one.runs for one in self.before.value.leases if one.lease_id in mine)
        )
        return _others(self.before.value, mine, held_before) != _others(
            self.new.value, mine, held_before
        )


class Client(NamedTuple):
    """A program counter and what its program remembers."""

    at: str
    gets: int = 0
    moves: int = 0
    made: int = 0
    row: Row | None = None
    sent: Statement | None = None
    seen: int = 0
    page: int = 0
    is_unsure: bool = False
    held: tuple[Receipt, ...] = ()
    old: Receipt | None = None


class State(NamedTuple):
    """The store, the network, the clients; from ``manifest`` on what only the invariants see."""

    now: int
    row: Row | None
    low: int
    rows: int
    late: int
    air: tuple[Statement, ...]
    clients: tuple[Client, ...]
    lost: int
    crashes: int
    timeouts: int
    manifest: int
    acknowledged: int
    current: tuple[UUID | None, ...]
    acked_by: tuple[UUID | None, ...]
    acked: int
    handed: tuple[int, ...]
    moved: int
    moved_sets: frozenset[UUID]
    fault: str | None

    @property
    def now_us(self) -> int:
        return START_US + self.now * TICK_US


def remember(state: State, statement: Statement) -> State:
    """The state once this CAS has taken effect, with the fault if it broke an invariant."""
    state = state._replace(row=statement.new)
    if state.low:
        return state  # below L a row is a ghost: nobody may act on what it says (G5)
    fault = _fault(state, statement)
    current = list(state.current)
    acked_by = state.acked_by
    acked = state.acked
    manifest = state.manifest
    receipt = statement.receipt
    if statement.kind == "seal":
        manifest = statement.new.manifest
    for offset in offsets_in(statement.new.dead):
        current[offset] = None
    for lease in statement.leases:
        for offset in lease.runs.offsets():
            current[offset] = lease.lease_id
    if receipt is not None and statement.kind == "ack":
        acked |= statement.gone
        acked_by = tuple(
            receipt.serial if statement.gone >> offset & 1 else before
            for offset, before in enumerate(acked_by)
        )
    elif receipt is not None and statement.kind in ENDING:
        after = None if statement.after is None else statement.after.serial
        for offset in offsets_in(receipt.offsets):
            if current[offset] == receipt.serial:
                current[offset] = after
    return state._replace(
        manifest=manifest,
        current=tuple(current),
        acked_by=acked_by,
        acked=acked,
        fault=state.fault or fault,
    )


def _fault(state: State, statement: Statement) -> str | None:  # noqa: PLR0911 - one per invariant
    """What this CAS breaks, seen from the past before it."""
    kind, receipt = statement.kind, statement.receipt
    if kind == "seal" and state.manifest >= 0:
        return "I5: a second manifest"
    if kind != "seal" and statement.before is not None:
        if statement.new.manifest != statement.before.manifest:
            return "I5: a sealed manifest changed"
        if statement.new.unacked & ~statement.before.unacked:
            return "I4: what is over is there again"
    if any(mask(lease.runs) & (state.acked | state.moved) for lease in statement.leases):
        return "I4: what is over is claimed again"
    if kind == "take out of the dead":
        return (
            "I1: a dead message is gone and was not moved"
            if statement.gone & ~state.moved
            else None
        )
    if kind != "ack":
        lost = statement.gone or (kind in OF_A_LEASE and statement.touches_others)
        return f"I3: {kind} changes another delivery" if lost else None
    assert receipt is not None
    if statement.gone & ~receipt.offsets:
        return "I3: an ack ends more than its receipt names"
    if any(state.current[offset] != receipt.serial for offset in offsets_in(statement.gone)):
        return "I3: an ack ends a delivery that its receipt does not name"
    return "I3: an ack changes another delivery" if statement.touches_others else None


def mask(runs: Runs) -> int:
    """A set of offsets as bits."""
    return sum(1 << offset for offset in runs.offsets())


def offsets_in(bits: int) -> Iterator[int]:
    return (offset for offset in range(bits.bit_length()) if bits >> offset & 1)


def runs_of(bits: int) -> Runs:
    return Runs.from_offsets(offsets_in(bits))


def with_client(state: State, number: int, client: Client) -> State:
    clients = state.clients
    return state._replace(clients=(*clients[:number], client, *clients[number + 1 :]))


def describe(value: Bucket) -> str:
    """A row in a line, without what is empty and without times."""
    held = [f"lease of {one.owner} {one.runs.pairs} x{one.delivery_count}" for one in value.leases]
    back = [f"returned {one.runs.pairs} x{one.deliveries}" for one in value.returned]
    back += [f"delayed {one.runs.pairs} x{one.deliveries}" for one in value.delayed]
    back += [f"dead {one.runs.pairs}" for one in value.dead]
    parts = [f"manifest {value.manifest.pairs}", f"fresh {value.fresh.pairs}", *held, *back]
    return f"{value.status.value}: " + ", ".join(parts)


def _others(value: Bucket, mine: Collection[UUID | None], held: int) -> list[object]:
    """Everything in a row but these leases and what they hold."""
    places = [("fresh", value.fresh), *((part.deliveries, part.runs) for part in value.returned)]
    places += [((one.due_us, one.deliveries), one.runs) for one in value.delayed]
    places += [(one.set_id, one.runs) for one in value.dead]
    left = sorted((str(place), bits) for place, runs in places if (bits := mask(runs) & ~held))
    return [left, [one for one in value.leases if one.lease_id not in mine]]
