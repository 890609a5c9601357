"""Run a statement on a simulated node, as its coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cassandra import ConsistencyLevel, InvalidRequest, ReadTimeout
from cassandra.query import UNSET_VALUE

from cassieq_spark.store.driver import rows_of
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.transport import Page, Request
from cassieq_spark.testing.simulated import cql
from cassieq_spark.testing.simulated.paxos import Paxos, Variant
from cassieq_spark.testing.simulated.ring import Coordinator, Key, Node, Ring, at_least
from cassieq_spark.testing.simulated.storage import (
    Cell,
    Clustering,
    Deletion,
    Extent,
    Marker,
    Partition,
    Row,
)

ROWS_PER_PAGE: Final = 5_000
"""The driver's ``fetch_size``."""

RANGE_S: Final = 10.0
"""``range_request_timeout``."""

_PAXOS_VARIANT: Final = "paxos_variant"
_APPLIED: Final = "[applied]"

_COMPARE: Final = MappingProxyType({"<": lt, "<=": le, ">": gt, ">=": ge})

At = tuple[int, tuple[Any, ...]]
"""A partition in the order of a scan: its token and key."""


class _Place(NamedTuple):
    """The place where a page ends: after this row, or after this partition.

    Attributes:
        clustering: None: all of the partition was read.
        left: How many rows the statement's limit leaves; None: it has no limit.
    """

    at: At
    clustering: Clustering | None
    left: int | None


class _Read(NamedTuple):
    """A read with its values.

    Attributes:
        relations: Each with its value.
        most: The most rows of the page.
        left: How many rows the statement's limit leaves; None: it has no limit.
        place: The end of the page before; None: this is the first one.
    """

    table: cql.Table
    command: cql.Select
    relations: list[tuple[cql.Relation, Any]]
    level: int
    most: int
    left: int | None
    place: _Place | None
    from_token: int | None

    @property
    def repaired(self) -> frozenset[str]:
        """The columns that read repair writes [P4]; if keys alone are selected, all of them [T10].

        ``ColumnFilter.Builder``: what selects no column fetches, and queries, all.
        """
        selected = frozenset(self.command.columns)
        return selected if selected - set(self.table.key) else frozenset(self.table.types)


class Server:
    """Runs statements, the same on every node of a ring.

    Attributes:
        rows_per_page: The page size of statements that have none of their own.
    """

    def __init__(self, ring: Ring, *, variant: Variant, rows_per_page: int = ROWS_PER_PAGE) -> None:
        self.ring = ring
        self.variant = variant
        self.rows_per_page = rows_per_page
        self._places: dict[bytes, _Place] = {}
        self._commands: dict[Statement, cql.Select | cql.Change] = {}

    def command_of(self, statement: Statement) -> tuple[cql.Select | cql.Change, cql.Table]:
        """Return a statement as it is understood, and its table.

        Raises:
            InvalidRequest: The table does not exist.
        """
        command = self._commands.get(statement)
        if command is None:
            command = cql.parse(statement.cql.format(ks=self.ring.keyspace))
            self._commands[statement] = command
        return command, self._table(command.table)

    def _table(self, name: str) -> cql.Table:
        if self.ring.copies is None:
            raise InvalidRequest(f"Keyspace {self.ring.keyspace} does not exist")
        table = self.ring.tables.get(name.rpartition(".")[2])
        if table is None:
            raise InvalidRequest(f"unconfigured table {name}")
        return table

    async def answer(self, via: Node, request: Request) -> Page:
        """Run a statement; a node coordinates it.

        Raises:
            DriverException: As Cassandra answers it.
            Stopped: The node has stopped meanwhile.
        """
        statement = request.statement
        if statement.kind is Kind.SYSTEM:
            return self._of_system(via, statement)
        command, table = self.command_of(statement)
        coordinator = Coordinator(self.ring, via)
        rows = [tuple(map(_plain, row)) for row in request.rows]
        if isinstance(command, cql.Select):
            read = self._read_of(table, command, rows[0] if rows else (), request)
            return await self._select(coordinator, read, statement)
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
            variant=self.variant,
        )
        is_applied, found = await paxos.cas(frozenset(table.types), decide)
        row = _current(found, clustering, via.now_s)
        if is_applied or row is None:
            return Page(rows_of([_APPLIED], [(is_applied,)]))
        # A refusal returns the columns of its condition, or of the whole row.
        names = list(table.types)
        if isinstance(command.condition, tuple):
            names = [one.column for one in command.condition]
        known = {**dict(zip(table.key, (*key[1], *clustering), strict=False)), **row}
        values = (_given(known.get(name)) for name in names)
        return Page(rows_of([_APPLIED, *names], [(False, *values)]))

    def _read_of(
        self, table: cql.Table, command: cql.Select, bound: tuple[Any, ...], request: Request
    ) -> _Read:
        relations = [(one, one.term.of(bound)) for one in command.where]
        if any(value is None or value is UNSET_VALUE for _, value in relations):
            raise InvalidRequest("Unsupported null value for a column of a condition")
        place = None if request.page is None else self._places[request.page]
        limit = None if command.limit is None else int(command.limit.of(bound))
        left = limit if place is None else place.left
        size = request.statement.rows_per_page or self.rows_per_page
        start = command.from_token
        return _Read(
            table=table,
            command=command,
            relations=relations,
            level=request.statement.consistency,
            most=size if left is None else min(size, left),
            left=left,
            place=place,
            from_token=None if start is None else int(start.of(bound)),
        )

    async def _select(self, coordinator: Coordinator, read: _Read, statement: Statement) -> Page:
        equal = {one.column: value for one, value in read.relations if one.operator == "="}
        if all(name in equal for name in read.table.partition):
            key: Key = (read.table.name, tuple(equal[name] for name in read.table.partition))
            at, level = (self.ring.token(key), key[1]), read.level
            if _is_empty(read.relations):
                return Page(())  # no replica is asked
            if statement.kind is Kind.SERIAL_READ:
                level = await self._finish_others(coordinator, key, level)
            extent_in = partial(_extent, read, at, coordinator.via.now_s, read.most)
            found = await coordinator.read(key, read.repaired, level, extent_in)
            return self._page(read, [(at, found)], coordinator)
        partitions, is_last = await self._scan(coordinator, read)
        return self._page(read, partitions, coordinator, is_last=is_last)

    async def _finish_others(self, coordinator: Coordinator, key: Key, level: int) -> int:
        """Finish what is under way in a partition; return the level of the read that follows."""
        quorum = int(ConsistencyLevel.LOCAL_QUORUM)
        paxos = Paxos(coordinator, key, serial=level, commit_level=quorum, variant=self.variant)
        await paxos.finish_others()
        return quorum if level == ConsistencyLevel.LOCAL_SERIAL else int(ConsistencyLevel.QUORUM)

    def _page(
        self,
        read: _Read,
        partitions: Sequence[tuple[At, Partition]],
        coordinator: Coordinator,
        *,
        is_last: bool = True,
    ) -> Page:
        """Return the next rows of these partitions, and the place of those that follow."""
        table, columns = read.table, read.command.columns
        rows: list[tuple[Any, ...]] = []
        ends: _Place | None = None
        for at, clustering, row in _rows_after(read, partitions, coordinator.via.now_s):
            if len(rows) == read.most:
                return self._with_place(columns, rows, ends)
            known = {**dict(zip(table.key, (*at[1], *clustering), strict=False)), **row}
            rows.append(tuple(_given(known.get(name)) for name in columns))
            left = None if read.left is None else read.left - len(rows)
            ends = _Place(at, None if read.command.is_distinct else clustering, left)
        if not is_last and len(rows) == read.most:
            return self._with_place(columns, rows, ends)
        if not is_last:
            left = None if read.left is None else read.left - len(rows)
            return self._with_place(columns, rows, _Place(partitions[-1][0], None, left))
        return self._with_place(columns, rows, None)

    def _with_place(
        self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], ends: _Place | None
    ) -> Page:
        following = None
        if ends is not None and ends.left != 0:
            following = b"%d" % len(self._places)
            self._places[following] = ends
        return Page(rows_of(columns, rows), following)

    async def _scan(
        self, coordinator: Coordinator, read: _Read
    ) -> tuple[list[tuple[At, Partition]], bool]:
        """Read the next partitions in the order of their tokens.

        Returns:
            The partitions, and whether there are no more.
        """
        needed, name = coordinator.needed(read.level), read.table.name
        nodes = coordinator.alive(read.level)[:needed]
        now_s = coordinator.via.now_s
        found = await coordinator.ask(
            nodes, lambda node: self._next_of(node, read, now_s), at_least(needed), RANGE_S
        )
        if len(found) < needed:
            raise ReadTimeout("the simulated replicas are silent", consistency=read.level)
        # Beyond the last partition of a replica that has more, its version is not known.
        ends = [max(taken) for taken, is_all in found.values() if not is_all]
        upto = min(ends) if ends else None
        keys = sorted({at for taken, _ in found.values() for at in taken})
        merged: list[tuple[At, Partition]] = []
        room = read.most
        for at in keys:
            if room == 0 or (upto is not None and at > upto):
                return merged, False
            versions = {node: taken.get(at, Partition()) for node, (taken, _) in found.items()}
            extent_in = partial(_extent, read, at, now_s, room)
            whole = await coordinator.merged(
                (name, at[1]), versions, read.repaired, read.level, extent_in
            )
            merged.append((at, whole))
            room -= sum(1 for _ in islice(_rows_after(read, [(at, whole)], now_s), room))
        return merged, upto is None

    def _next_of(self, node: Node, read: _Read, now_s: int) -> tuple[dict[At, Partition], bool]:
        """Return a node's next partitions, somewhat more than a page, and whether these are all."""
        name, place = read.table.name, read.place
        ordered = sorted((self.ring.token((name, key)), key) for key in node.data.get(name, {}))
        taken: dict[At, Partition] = {}
        live = 0
        for at in ordered:
            if read.from_token is not None and at[0] < read.from_token:
                continue
            # A partition within which the page before ended is read again.
            if place is not None and (
                at < place.at or (at == place.at and place.clustering is None)
            ):
                continue
            if live > read.most:
                return taken, False
            taken[at] = node.read((name, at[1]), now_s)
            live += taken[at].is_live(now_s)
        return taken, True

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
    relations = condition if isinstance(condition, tuple) else ()
    there = row or {}
    return all(there.get(one.column) == one.term.of(bound) for one in relations)


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


def _extent(read: _Read, at: At, now_s: int, room: int, partition: Partition) -> Extent:
    """Return the rows of a partition that a page comes to, which has room for so many."""
    clustering = read.table.clustering
    rest = [(one, value) for one, value in read.relations if one.column in clustering]

    def selects(row: Clustering) -> bool:
        known = dict(zip(clustering, row, strict=False))
        return all(_matches(known.get(one.column), one.operator, value) for one, value in rest)

    if read.command.is_distinct:  # a list of keys takes one row of each
        upto = next((row for row, _ in partition.live(now_s)), None)
    else:
        rows = islice(_rows_after(read, [(at, partition)], now_s), room - 1, room)
        upto = next((row for _, row, _ in rows), None)
    after = read.place.clustering if read.place is not None and read.place.at == at else None
    # A row of static columns alone comes after all others.
    return Extent(selects, after, upto or None)


def _is_empty(relations: Sequence[tuple[cql.Relation, Any]]) -> bool:
    """Whether a slice ends before it begins."""
    bounds = [(one, value) for one, value in relations if one.operator in _COMPARE]
    return any(
        not (_COMPARE[low.operator](end, start) and _COMPARE[high.operator](start, end))
        for low, start in bounds
        for high, end in bounds
        if low.column == high.column
        and low.operator in {">", ">="}
        and high.operator in {"<", "<="}
    )


def _matches(value: Any, operator: str, wanted: Any) -> bool:
    if value is None:
        return False
    if operator == "=":
        return bool(value == wanted)
    if operator == "IN":
        return value in wanted
    return bool(_COMPARE[operator](value, wanted))


def _rows_after(
    read: _Read, partitions: Sequence[tuple[At, Partition]], now_s: int
) -> Iterator[tuple[At, Clustering, dict[str, Any]]]:
    """Yield the selected rows after the place where the page before ended."""
    place = read.place
    for at, partition in partitions:
        for clustering, row in _rows_of(read.table, read.command, partition, read.relations, now_s):
            if place is not None and at == place.at and clustering <= (place.clustering or ()):
                continue
            yield at, clustering, row
