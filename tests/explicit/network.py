"""How a CAS goes (store/cas.py), step by step: sent, in the air, applied, refused, settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from cassieq_spark.model import bucket as bucket_rules
from cassieq_spark.model import dead as dead_sets
from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.dead import Dead
from cassieq_spark.model.outcome import Stored, Tag, Tags, Version
from tests.explicit.states import (
    START_US,
    Client,
    Receipt,
    Row,
    State,
    Statement,
    remember,
    with_client,
)

Step = tuple[str, State]


def found_by_lease_id(row: Bucket, receipt: Receipt) -> Lease | None:
    """What an ack, extend, release or update is about (`queue/settle/settle.py`)."""
    return row.lease(receipt.lease_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The functions of the module that the steps call, and the orders the protocol rests on.

    A negative control takes one of them away. The last three are ADR 11's; `movable` is ADR 19's.
    """

    sealed: Callable[..., Bucket] = bucket_rules.sealed
    without_dead: Callable[..., Bucket] = bucket_rules.without_dead
    with_closed_sets: Callable[..., Bucket] = bucket_rules.with_closed_sets
    claim: Callable[..., tuple[Bucket, tuple[Lease, ...]]] = lease_rules.claim
    ack: Callable[..., Bucket] = lease_rules.ack
    extend: Callable[..., Bucket] = lease_rules.extend
    release: Callable[..., Bucket] = lease_rules.release
    revise: Callable[..., Bucket] = settlement.revise
    found: Callable[[Bucket, Receipt], Lease | None] = found_by_lease_id
    movable: Callable[[Dead], list[Dead]] = dead_sets.movable
    settles_by_tags: bool = True
    condition: str = "writer"
    put_reads_low: bool = True
    put_reads_row: bool = True
    seal_reads_low: bool = True
    scans_after_insert: bool = True
    raises_low_first: bool = True
    put_judges_above_low: bool = True
    get_hands_out_above_low: bool = True
    ack_expires_above_low: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Who is there, and how much may happen.

    Attributes:
        producers: One message each, at offsets 0, 1, ...; with none the bucket begins sealed.
        gets, moves: Per consumer: claims, and what it does with what it got.
        verbs: What it may do.
        delayed: Offsets that were put with a delay of a tick.
        lost: Answers that get lost. ``timeouts``: of message writes.
    """

    offsets: int = 2
    producers: int = 0
    consumers: int = 2
    has_repair: bool = False
    ticks: int = 1
    gets: int = 1
    moves: int = 1
    at_most: int = 2
    verbs: tuple[str, ...] = ("ack",)
    delayed: tuple[int, ...] = ()
    max_deliveries: int | None = None
    lost: int = 0
    crashes: int = 0
    timeouts: int = 0


@dataclass(kw_only=True)
class Network:
    """The store and the way to it. What a client does with an answer is in `clients`."""

    size: Size
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self._rows: dict[tuple[Bucket, Version], Row] = {}
        self._made: dict[tuple[Any, ...], Statement] = {}
        self._alone: dict[tuple[Row | None, int, int, int], int] = {}

    def _is_repair(self, number: int) -> bool:
        return self.size.has_repair and number == self.size.producers + self.size.consumers

    def _who(self, number: int) -> str:
        """As traces name it: producer, consumer, repair."""
        if self._is_repair(number):
            return "R"
        return f"{'P' if number < self.size.producers else 'C'}{number}"

    def _settled(self, state: State, number: int, statement: Statement, outcome: str) -> State:
        raise NotImplementedError

    def _give_up(self, state: State, number: int) -> State:
        raise NotImplementedError

    def _at_send(self, state: State, number: int, client: Client) -> Iterator[Step]:
        statement = client.sent
        assert statement is not None
        who = f"{self._who(number)}'s {statement.kind}"
        if self._holds(state, statement):
            landed = remember(state, statement)
            yield f"{who} is applied", self._settled(landed, number, statement, "applied")
        else:
            yield f"{who} is refused", with_client(state, number, client._replace(at="refused"))
        if state.lost:
            air = state.air if statement in state.air else (*state.air, statement)
            lost = state._replace(lost=state.lost - 1, air=air)
            unsure = client._replace(is_unsure=True)
            yield f"{who} is not answered", with_client(lost, number, unsure)
        if client.is_unsure:
            if not self.rules.settles_by_tags:
                again = client._replace(at="refused", is_unsure=False)
                yield f"{who} is taken for refused", with_client(state, number, again)
            yield (
                f"{self._who(number)} gives up: {statement.kind} is ambiguous",
                self._give_up(state, number),
            )

    def _at_refused(self, state: State, number: int, client: Client) -> Iterator[Step]:
        statement = client.sent
        assert statement is not None
        base = statement.before.stored.version.row_version if statement.before else 0
        outcome = "refused"
        if state.row is not None and self.rules.settles_by_tags:
            tags = state.row.stored.version.tags
            if tags.has(statement.new.stored.version.writer):
                outcome = "applied"
            elif tags.evicted > base:
                outcome = "evicted"
        name = f"{self._who(number)} reads the row again: its {statement.kind} was {outcome}"
        yield name, self._settled(state, number, statement, outcome)

    def _holds(self, state: State, statement: Statement) -> bool:
        """Whether the server would apply it now."""
        before, row = statement.before, state.row
        if before is None or row is None:
            return before is row
        ours, theirs = before.stored.version, row.stored.version
        if self.rules.condition == "row_version":
            return ours.row_version == theirs.row_version
        return self.rules.condition == "none" or ours.writer == theirs.writer

    def _send(  # noqa: PLR0917 - who, what, on which row
        self,
        state: State,
        number: int,
        client: Client,
        kind: str,
        before: Row | None,
        compute: Callable[[Callable[[], UUID]], tuple[Any, ...]],
        *key: object,
    ) -> State:
        """As `CasSender.send` begins: a fresh writer, in place of this client's former tag.

        ``compute`` is given a source of new ids and returns the new value, the leases in it, the
        receipt and the receipt after it. It is pure, so what it returned once is kept.
        """
        made = client.made + 1
        whole = (kind, number, made, before, state.now, client.gets, *key)
        statement = self._made.get(whole)
        if statement is None:
            ids = iter(range((number << 20) + (made << 4) + 1, 1 << 62))
            value, leases, receipt, after = compute(lambda: UUID(int=next(ids)))
            new = self._row(before, value, client=number, number=made)
            same = (kind, number, before, new, leases, receipt, after)
            statement = self._made.setdefault(
                same,
                Statement(
                    kind=kind,
                    client=number,
                    before=before,
                    new=new,
                    leases=leases,
                    receipt=receipt,
                    after=after,
                ),
            )
            self._made[whole] = statement
        client = client._replace(at="send", row=None, sent=statement, made=made, seen=0, page=0)
        return with_client(state, number, client)

    def _row(self, before: Row | None, value: Bucket, *, client: int, number: int) -> Row:
        writer = UUID(int=(client << 20) + (number << 4))
        version = 1 if before is None else before.stored.version.row_version + 1
        tags = Tags() if before is None else before.stored.version.tags
        tag = Tag(client=UUID(int=client), writer=writer, row_version=version)
        key = (
            replace(value, changed_us=START_US),
            Version(writer=writer, tags=tags.with_tag(tag), row_version=version),
        )
        if key not in self._rows:
            self._rows[key] = Row(stored=Stored(value=key[0], version=key[1]))
        return self._rows[key]


def idle(client: Client) -> Client:
    return client._replace(at="idle", row=None, sent=None, seen=0, page=0, is_unsure=False)
