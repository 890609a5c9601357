"""Rows that are LWT only, in a model: CASes, answers that get lost, copies that land whenever.

What was sent twice has a copy on its way: it may land at any later time, whatever has become of the
row meanwhile, and takes effect if its condition holds then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(eq=False, frozen=True, kw_only=True)
class Row:
    """A row as one CAS wrote it. Equal ones are one object (`Lwt.row`), so states compare fast.

    Attributes:
        writer: Fresh with each CAS, but not with each landing of it.
        tags: The writers of this life of the row: no client is pushed out of so few [R8].
    """

    value: Any
    writer: int
    tags: frozenset[int]


class Cas(NamedTuple):
    """A statement as it is sent, each time the same. ``row``: None deletes."""

    kind: str
    who: int
    key: int
    before: int | None
    row: Row | None


class Client(NamedTuple):
    """A program counter, what its program remembers, and what it waits for an answer to."""

    at: str
    seen: Any = None
    sent: Cas | None = None
    is_unsure: bool = False
    made: int = 0
    tries: int = 0


class State(NamedTuple):
    """The rows by key, what is on its way, the clients; ``rest`` is each world's own."""

    rows: tuple[Row | None, ...]
    air: frozenset[Cas]
    clients: tuple[Client, ...]
    lost: int
    rest: Any
    fault: str | None = None


Step = tuple[str, State]


@dataclass(kw_only=True)
class Lwt:
    """How a CAS goes; what its client does then is each world's own (`_answered`)."""

    names: tuple[str, ...] = ()
    _rows: dict[Hashable, Row] = field(default_factory=dict)

    def row(self, value: Any, writer: int, before: Row | None = None) -> Row:
        """The row that a CAS leaves."""
        tags = (frozenset() if before is None else before.tags) | {writer}
        key = (value, writer, tags)
        if key not in self._rows:
            self._rows[key] = Row(value=value, writer=writer, tags=tags)
        return self._rows[key]

    def sending(  # noqa: PLR0917 - who sends what, to which row
        self, state: State, number: int, kind: str, key: int, before: Row | None, value: Any
    ) -> State:
        """The client begins to send; ``value``: None deletes the row."""
        client = state.clients[number]
        made = client.made + 1
        row = None if value is None else self.row(value, number * 1_000 + made, before)
        cas = Cas(kind, number, key, None if before is None else before.writer, row)
        client = client._replace(at="sent", sent=cas, is_unsure=False, made=made)
        return with_client(state, number, client)

    def steps(self, state: State) -> Iterator[Step]:
        """What lands, and what each client does next."""
        for cas in state.air:
            if _holds(state, cas):
                name = f"a copy of {self.names[cas.who]}'s {cas.kind} lands"
                yield name, with_row(state._replace(air=state.air - {cas}), cas.key, cas.row)
        for number, client in enumerate(state.clients):
            if client.at == "sent":
                yield from self._sent(state, number, client)
            elif client.at != "ended":
                for name, after in getattr(self, f"_at_{client.at}")(state, number, client):
                    yield f"{self.names[number]} {name}", after

    def _sent(self, state: State, number: int, client: Client) -> Iterator[Step]:
        cas = client.sent
        assert cas is not None
        name = f"{self.names[number]}'s {cas.kind}"
        after = with_client(state, number, client._replace(sent=None, is_unsure=False))
        is_once = not client.is_unsure
        if _holds(state, cas):
            after = with_row(after, cas.key, cas.row)
            yield (
                f"{name} is applied",
                self._answered(after, number, cas, is_applied=True, is_once=is_once),
            )
        else:
            now = state.rows[cas.key]
            # A refusal is settled by the row as it is then (store/cas.py).
            is_applied = now is not None and cas.row is not None and cas.row.writer in now.tags
            is_applied |= cas.row is None
            outcome = "had been applied" if is_applied else "is refused"
            yield (
                f"{name} {outcome}",
                self._answered(after, number, cas, is_applied=is_applied, is_once=is_once),
            )
        if state.lost and not client.is_unsure:
            unsure = with_client(state, number, client._replace(is_unsure=True))
            yield (
                f"{name} is not answered",
                unsure._replace(lost=state.lost - 1, air=state.air | {cas}),
            )

    def _answered(
        self, state: State, number: int, cas: Cas, *, is_applied: bool, is_once: bool
    ) -> State:
        raise NotImplementedError


def _holds(state: State, cas: Cas) -> bool:
    row = state.rows[cas.key]
    return cas.before == (None if row is None else row.writer)


def with_row(state: State, key: int, row: Row | None) -> State:
    return state._replace(rows=(*state.rows[:key], row, *state.rows[key + 1 :]))


def with_client(state: State, number: int, client: Client) -> State:
    clients = state.clients
    return state._replace(clients=(*clients[:number], client, *clients[number + 1 :]))


def at(state: State, number: int, where: str, **more: Any) -> State:
    """The client goes on there; one that has ended remembers nothing."""
    if where == "ended":
        return with_client(state, number, Client("ended"))
    return with_client(state, number, state.clients[number]._replace(at=where, **more))
