"""`SimulatedTransport` takes a client's statements to a simulated ring and back."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Context
from datetime import UTC, datetime
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cassandra import ConsistencyLevel, InvalidRequest, OperationTimedOut
from cassandra.cluster import NoHostAvailable
from cassandra.query import UNSET_VALUE

from cassieq_spark.store.driver import rows_of
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.transport import Node as Address
from cassieq_spark.store.transport import Page, Request, Told
from cassieq_spark.testing.simulated import cql
from cassieq_spark.testing.simulated.paxos import Paxos, Variant
from cassieq_spark.testing.simulated.ring import Coordinator, Key, Node, Ring, Stopped, shut
from cassieq_spark.testing.simulated.storage import (
    Cell,
    Clustering,
    Deletion,
    Marker,
    Partition,
    Row,
)

ROWS_PER_PAGE: Final = 5_000
"""The driver's ``fetch_size``."""

_PAXOS_VARIANT: Final = "paxos_variant"
_APPLIED: Final = "[applied]"

_COMPARE: Final = MappingProxyType({"<": lt, "<=": le, ">": gt, ">=": ge})


class _Place(NamedTuple):
    """The place where a page ends: after this row, or after this partition.

    Attributes:
        left: How many rows the statement's limit leaves; None: it has no limit.
    """

    token: int
    key: tuple[Any, ...]
    clustering: Clustering | None
    left: int | None


class SimulatedTransport:
    """A client's connections to a simulated ring; a `Transport`.

    Attributes:
        name: The client's place in the network.
        rows_per_page: The page size of statements that have none of their own.
        datacenter, counts, failures: See `Transport`.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        name: str = "client",
        datacenter: str | None = None,
        variant: Variant = Variant.V2,
        rows_per_page: int = ROWS_PER_PAGE,
    ) -> None:
        self.ring = ring
        self.name = name
        self.datacenter = datacenter or ring.nodes[0].datacenter
        self.variant = variant
        self.rows_per_page = rows_per_page
        self.counts: Counter[str] = Counter()
        self.failures: Mapping[Any, BaseException] = {}
        self._ready: set[str] = set()
        self._places: dict[bytes, _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_connected(self) -> bool:
        """See `Transport`."""
        return any(node.is_up for node in self.ring.nodes)

    def is_ready(self, statement: Statement) -> bool:
        """See `Transport`."""
        return statement.name in self._ready

    async def prepare(self, statement: Statement, timeout_s: float) -> None:
        """See `Transport`."""
        del timeout_s
        if statement.kind is not Kind.SYSTEM:
            command = cql.parse(statement.cql.format(ks=self.ring.keyspace))
            self._table(command.table)
        self._ready.add(statement.name)

    def nodes(self) -> list[Address]:
        """See `Transport`."""
        return [
            Address(node.host_id, node.address, node.datacenter, node.is_up)
            for node in self.ring.nodes
        ]

    def close(self) -> None:
        """See `Transport`. What was sent goes on."""

    async def define(self, ddl: str, timeout_s: float) -> None:
        """See `Transport`."""
        del timeout_s
        if ddl.startswith("CREATE KEYSPACE"):
            copies = re.findall(r"'([^']+)': '?(\d+)'?", ddl)
            if any(int(count) != self._nodes_of(name) for name, count in copies):
                raise InvalidRequest("the simulated keyspace has a copy on each node")
            self.ring.copies = {name: int(count) for name, count in copies}
            return
        if self.ring.copies is None:
            raise InvalidRequest(f"Keyspace {self.ring.keyspace} does not exist")
        table = cql.parse_table(ddl)
        self.ring.tables.setdefault(table.name, table)

    def _nodes_of(self, datacenter: str) -> int:
        return sum(node.datacenter == datacenter for node in self.ring.nodes)

    def send(self, request: Request, told: Told) -> None:
        """See `Transport`."""
        if request.page is None and request.statement.kind is not Kind.SYSTEM:
            self.counts[request.statement.name] += len(request.rows)
        via = self._coordinator(request.node)
        if via is None:
            told(NoHostAvailable("no simulated node is up", {}))
            return
        ring, loop = self.ring, asyncio.get_running_loop()
        is_told = False

        def tell(answer: Page | BaseException) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                timer.cancel()
                told(answer)

        async def coordinate() -> None:
            life = via.lives
            try:
                answer: Page | BaseException = await self._answer(via, request)
            except Stopped:
                answer = shut()
            except Exception as error:  # noqa: BLE001 - the client gets it
                answer = error
            if not via.is_up or via.lives != life:
                answer = shut()
            ring.network.carry(via.address, self.name, lambda: tell(answer))

        def arrive() -> None:
            if not via.is_up:
                ring.network.carry(via.address, self.name, lambda: tell(shut()))
                return
            # A node knows nothing of a client's context.
            task = loop.create_task(coordinate(), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        timer = loop.call_later(
            request.timeout_s,
            lambda: tell(OperationTimedOut(f"no answer within {request.timeout_s} s")),
            context=Context(),
        )
        ring.network.carry(self.name, via.address, arrive)

    def _coordinator(self, wanted: Address | None) -> Node | None:
        """Choose a node: this one, or any that is up in the client's data centre."""
        if wanted is not None:
            found = [node for node in self.ring.nodes if node.host_id == wanted.host_id]
        else:
            found = [node for node in self.ring.nodes if node.datacenter == self.datacenter]
        found = [node for node in found if node.is_up]
        return self.ring.rng.choice(found) if found else None

    def _table(self, name: str) -> cql.Table:
        """Return a table by its name with the keyspace.

        Raises:
            InvalidRequest: It does not exist.
        """
        if self.ring.copies is None:
            raise InvalidRequest(f"Keyspace {self.ring.keyspace} does not exist")
        table = self.ring.tables.get(name.rpartition(".")[2])
        if table is None:
            raise InvalidRequest(f"unconfigured table {name}")
        return table

    async def _answer(self, via: Node, request: Request) -> Page:
        """Run a statement on a node, as its coordinator."""
        statement = request.statement
        if statement.kind is Kind.SYSTEM:
            return self._of_system(via, statement)
        command = cql.parse(statement.cql.format(ks=self.ring.keyspace))
        table = self._table(command.table)
        coordinator = Coordinator(self.ring, via)
        if isinstance(command, cql.Select):
            return await self._select(coordinator, table, command, request)
        rows = [tuple(map(_plain, row)) for row in request.rows]
        if command.condition is None:
            now_us = via.stamp()
            changes = [_change(table, command, row, now_us, via.now_s) for row in rows]
            await coordinator.write(changes, statement.consistency)
            return Page(())
        return await self._cas(coordinator, table, command, rows[0], statement)

    async def _cas(
        self,
        coordinator: Coordinator,
        table: cql.Table,
        command: cql.Change,
        bound: tuple[Any, ...],
        statement: Statement,
    ) -> Page:
        via = coordinator.via
        key, clustering = _key_of(table, command, bound)

        def decide(found: Partition, at_us: int) -> Partition | None:
            row = _current(found, clustering, via.now_s)
            if not _holds(command.condition, row, bound):
                return None
            _, change = _change(table, command, bound, at_us, via.now_s)
            return change.written_at(at_us)

        paxos = Paxos(
            coordinator,
            key,
            serial=statement.serial_consistency,
            commit_level=statement.consistency,
        )
        is_applied, found = await paxos.cas(frozenset(table.types), decide, self.variant)
        if is_applied:
            return Page(rows_of([_APPLIED], [(True,)]))
        # A refusal returns the columns of its condition, or of the whole row (`CasPlan`).
        row = _current(found, clustering, via.now_s)
        names: list[str] = []
        if command.condition is cql.Condition.NOT_EXISTS:
            names = list(table.types)
        elif isinstance(command.condition, tuple):
            names = [one.column for one in command.condition]
        known = {**dict(zip(table.key, (*key[1], *clustering), strict=False)), **(row or {})}
        if row is None:
            names = []
        return Page(
            rows_of([_APPLIED, *names], [(False, *(_given(known.get(name)) for name in names))])
        )

    async def _select(
        self, coordinator: Coordinator, table: cql.Table, command: cql.Select, request: Request
    ) -> Page:
        bound = tuple(map(_plain, request.rows[0])) if request.rows else ()
        relations = [(one, _plain(one.term.of(bound))) for one in command.where]
        if any(value is None or value is UNSET_VALUE for _, value in relations):
            raise InvalidRequest("Unsupported null value for a column of a condition")
        equal = {one.column: value for one, value in relations if one.operator == "="}
        level = request.statement.consistency
        size = request.statement.rows_per_page or self.rows_per_page
        place = None if request.page is None else self._places[request.page]
        limit = None if command.limit is None else int(command.limit.of(bound))
        left = limit if place is None else place.left
        most = size if left is None else min(size, left)
        if all(name in equal for name in table.partition):
            key: Key = (table.name, tuple(equal[name] for name in table.partition))
            if request.statement.kind is Kind.SERIAL_READ:
                paxos = Paxos(
                    coordinator, key, serial=level, commit_level=ConsistencyLevel.LOCAL_QUORUM
                )
                await paxos.finish_others(self.variant)
                level = int(
                    ConsistencyLevel.LOCAL_QUORUM
                    if level == ConsistencyLevel.LOCAL_SERIAL
                    else ConsistencyLevel.QUORUM
                )
            found = await coordinator.read(key, frozenset(command.columns), level)
            of_keys = [(self.ring.token(key), key[1], found)]
            is_last = True
        else:
            start = None if command.from_token is None else int(command.from_token.of(bound))
            of_keys, is_last = await self._scan(
                coordinator, table, command, level, place, start, most
            )
        rows: list[tuple[Any, ...]] = []
        ends = None
        now_s = coordinator.via.now_s
        for token, key_values, partition in of_keys:
            for clustering, row in _rows_of(table, command, partition, relations, now_s):
                at_place = place is not None and key_values == place.key
                if at_place and place is not None and clustering <= (place.clustering or ()):
                    continue
                if len(rows) == most:
                    is_last = left is not None and left <= most
                    return self._page(command, rows, None if is_last else ends)
                known = dict(zip(table.key, (*key_values, *clustering), strict=False))
                known |= row
                rows.append(tuple(_given(known.get(name)) for name in command.columns))
                rest = None if left is None else left - len(rows)
                ends = _Place(token, key_values, None if command.is_distinct else clustering, rest)
                if command.is_distinct:
                    break
        if not is_last:
            token, key_values, _ = of_keys[-1]
            rest = None if left is None else left - len(rows)
            return self._page(command, rows, _Place(token, key_values, None, rest))
        return self._page(command, rows, None)

    async def _scan(
        self,
        coordinator: Coordinator,
        table: cql.Table,
        command: cql.Select,
        level: int,
        place: _Place | None,
        start: int | None,
        most: int,
    ) -> tuple[list[tuple[int, tuple[Any, ...], Partition]], bool]:
        """Read the next partitions in the order of their tokens.

        Returns:
            The partitions, and whether there are no more.
        """
        after = None if place is None else (place.token, place.key)
        # A partition whose rows a page has ended in is read again.
        is_within = place is not None and place.clustering is not None
        now_s = coordinator.via.now_s
        needed = coordinator.needed(level)

        def next_of(node: Node) -> tuple[dict[tuple[int, tuple[Any, ...]], Partition], bool]:
            ordered = sorted(
                (self.ring.token((table.name, key)), key) for key in node.data.get(table.name, {})
            )
            taken: dict[tuple[int, tuple[Any, ...]], Partition] = {}
            live = 0
            for at in ordered:
                if start is not None and at[0] < start:
                    continue
                if after is not None and (at < after or (at == after and not is_within)):
                    continue
                if live > most:
                    return taken, False
                taken[at] = node.read((table.name, at[1]))
                live += taken[at].is_live(now_s)
            return taken, True

        nodes = coordinator.alive(level)[:needed]
        found = await coordinator.ask(nodes, next_of, needed, 10.0)
        if len(found) < needed:
            raise OperationTimedOut("the simulated replicas are silent")
        # Beyond the last partition of a replica that has more, its version is not known.
        ends = [max(taken) for taken, is_all in found.values() if not is_all]
        upto = min(ends) if ends else None
        keys = sorted({at for taken, _ in found.values() for at in taken})
        keys = [at for at in keys if upto is None or at <= upto]
        columns = frozenset(table.types) if command.is_distinct else frozenset(command.columns)
        merged = []
        for at in keys:
            versions = {node: taken.get(at, Partition()) for node, (taken, _) in found.items()}
            whole = await coordinator.merged((table.name, at[1]), versions, columns, level)
            merged.append((*at, whole))
        return merged, upto is None

    def _page(
        self, command: cql.Select, rows: Sequence[tuple[Any, ...]], ends: _Place | None
    ) -> Page:
        following = None
        if ends is not None and ends.left != 0:
            following = b"%d" % len(self._places)
            self._places[following] = ends
        return Page(rows_of(command.columns, rows), following)

    def _of_system(self, via: Node, statement: Statement) -> Page:
        """Answer from a node's own tables."""
        if "currentTimestamp" in statement.cql:
            now = datetime.fromtimestamp(via.wall_us() // 1_000 / 1_000, UTC).replace(tzinfo=None)
            return Page(rows_of(["now"], [(now,)]))
        if _PAXOS_VARIANT in statement.cql:
            return Page(rows_of(["value"], [(self.variant.value,)]))
        if self.ring.copies is None:
            return Page(())
        copies = {name: str(count) for name, count in self.ring.copies.items()}
        there = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", **copies}
        return Page(rows_of(["replication"], [(there,)]))


def _plain(value: Any) -> Any:
    """Return a bound value as it is stored."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return str(value) if isinstance(value, str) else value


def _given(value: Any) -> Any:
    """Return a stored value as the driver gives it."""
    return list(value) if isinstance(value, tuple) else value


def _key_of(table: cql.Table, command: cql.Change, bound: Sequence[Any]) -> tuple[Key, Clustering]:
    """Return the key that a change names, with as much of the clustering as it names."""
    terms = command.values if command.verb == "INSERT" else command.key
    partition = tuple(terms[name].of(bound) for name in table.partition)
    clustering = tuple(terms[name].of(bound) for name in table.clustering if name in terms)
    if any(value is None or value is UNSET_VALUE for value in partition + clustering):
        raise InvalidRequest("Invalid null value in condition for a key column")
    return (table.name, partition), clustering


def _change(
    table: cql.Table, command: cql.Change, bound: Sequence[Any], now_us: int, now_s: int
) -> tuple[Key, Partition]:
    """Return what a statement writes."""
    key, clustering = _key_of(table, command, bound)
    at_us = now_us if command.at_us is None else int(command.at_us.of(bound))
    ttl_s = 0 if command.ttl is None else int(command.ttl.of(bound) or 0)
    ends_s = now_s + ttl_s if ttl_s else 0
    made = Partition()
    if command.verb == "DELETE":
        deletion = Deletion(at_us, now_s)
        if not clustering:
            made.deletion = deletion
        elif len(clustering) == len(table.clustering):
            made.row(clustering).deletion = deletion
        else:
            made.slices[clustering] = deletion
        return key, made
    row = made.row(clustering)
    if command.verb == "INSERT":
        row.marker = Marker(at_us, ttl_s, ends_s)
    for column, term in command.values.items():
        value = term.of(bound) if term.number is None or term.number < len(bound) else UNSET_VALUE
        if column in table.key or value is UNSET_VALUE:
            continue
        target: Row = made.static if column in table.static else row
        target.cells[column] = (
            Cell(at_us, None, 0, now_s) if value is None else Cell(at_us, value, ttl_s, ends_s)
        )
    return key, made


def _current(found: Partition, clustering: Clustering, now_s: int) -> dict[str, Any] | None:
    """Return the row that a condition is about; None: it does not exist."""
    row = found.rows.get(clustering)
    return row.live(now_s) if row is not None and row.is_live(now_s) else None


def _holds(
    condition: cql.Condition | tuple[cql.Relation, ...] | None,
    row: Mapping[str, Any] | None,
    bound: Sequence[Any],
) -> bool:
    if condition is cql.Condition.NOT_EXISTS:
        return row is None
    if condition is cql.Condition.EXISTS:
        return row is not None
    there = row or {}
    return all(
        there.get(one.column) == one.term.of(bound)
        for one in condition or ()
        if isinstance(one, cql.Relation)
    )


def _rows_of(
    table: cql.Table,
    command: cql.Select,
    partition: Partition,
    relations: Sequence[tuple[cql.Relation, Any]],
    now_s: int,
) -> Iterator[tuple[Clustering, dict[str, Any]]]:
    """Yield the rows of a partition that a read selects, in order."""
    rest = [(one, value) for one, value in relations if one.column not in table.partition]
    static = partition.static.live(now_s)
    if command.is_distinct:
        if partition.is_live(now_s):
            yield (), static
        return
    is_any = False
    for clustering, values in partition.live(now_s):
        is_any = True
        known = {**static, **values, **dict(zip(table.clustering, clustering, strict=True))}
        if all(_matches(known.get(one.column), one.operator, value) for one, value in rest):
            yield clustering, {**static, **values}
    if static and not is_any and not rest:
        yield (), static


def _matches(value: Any, operator: str, wanted: Any) -> bool:
    if value is None:
        return False
    if operator == "=":
        return bool(value == wanted)
    if operator == "IN":
        return value in wanted
    return bool(_COMPARE[operator](value, wanted))
