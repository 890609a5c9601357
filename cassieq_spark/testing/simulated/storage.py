"""The data of one replica: cells with write times, deletions, and how two versions are merged.

A change is a `Partition` with what it writes, and a replica's data is the merge of all changes that
reached it, in any order. So read repair, hints and commits of Paxos need no code of their own.

Facts by Cassandra's source: ``db/rows/Cells.java`` (`resolve`), ``LivenessInfo.java``
(`_later_marker`), ``DeletionTime.java`` (`supersedes`: the later write time, then the later
deletion). Times of expiry and deletion are whole seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from struct import pack
from typing import Any, Final, NamedTuple
from uuid import UUID

from cassandra.murmur3 import murmur3

from cassieq_spark.testing.simulated.cql import Table

Clustering = tuple[Any, ...]


class Cell(NamedTuple):
    """A value of a column.

    Attributes:
        value: None: the column was deleted.
        ttl_s: Its time to live; 0: it has none.
        ends_s: The second in which it expires, or in which it was deleted; 0: neither.
    """

    at_us: int
    value: Any
    ttl_s: int = 0
    ends_s: int = 0

    def is_live(self, now_s: int) -> bool:
        """Whether a read at this second sees a value."""
        return self.value is not None and (not self.ttl_s or now_s < self.ends_s)


class Deletion(NamedTuple):
    """The removal of all that was written up to a time, and the second in which it was made."""

    at_us: int
    made_s: int


class Marker(NamedTuple):
    """The row marker of an INSERT: the row exists, even if all its columns are null."""

    at_us: int
    ttl_s: int = 0
    ends_s: int = 0

    def is_live(self, now_s: int) -> bool:
        """Whether the row exists by it."""
        return not self.ttl_s or now_s < self.ends_s


def resolve(one: Cell, other: Cell) -> Cell:
    """Return the cell that wins (``Cells.resolveRegular``)."""
    if one == other:
        return one
    if one.at_us != other.at_us:
        return one if one.at_us > other.at_us else other
    if bool(one.ends_s) != bool(other.ends_s):
        return one if one.ends_s else other  # a tombstone, or what will be one
    if one.ends_s:
        if (one.value is None) != (other.value is None):
            return one if one.value is None else other
        if one.ends_s != other.ends_s:
            return one if one.ends_s > other.ends_s else other
    return one if _stored(one.value) >= _stored(other.value) else other


def _later_marker(one: Marker | None, other: Marker | None) -> Marker | None:
    if one is None or other is None:
        return one or other
    if one.at_us != other.at_us:
        return one if one.at_us > other.at_us else other
    if bool(one.ttl_s) != bool(other.ttl_s):
        return one if one.ttl_s else other
    return one if one.ends_s >= other.ends_s else other


def _later(one: Deletion | None, other: Deletion | None) -> Deletion | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _stored(value: Any) -> bytes:
    """Return a value as Cassandra stores it, to compare and to hash."""
    match value:
        case bool():
            return b"\1" if value else b"\0"
        case int():
            return pack(">q", value)
        case str():
            return value.encode()
        case UUID():
            return value.bytes
        case tuple():
            parts = [_stored(one) for one in value]
            return pack(">i", len(parts)) + b"".join(pack(">i", len(one)) + one for one in parts)
    return value if isinstance(value, bytes) else b""


_INT: Final = "int"


def token_of(table: Table, key: tuple[Any, ...]) -> int:
    """Return the token of a partition: Murmur3 of its key."""
    parts = [
        pack(">i", value) if table.types[column] == _INT else _stored(value)
        for column, value in zip(table.partition, key, strict=True)
    ]
    if len(parts) == 1:
        return int(murmur3(parts[0]))
    return int(murmur3(b"".join(pack(">H", len(part)) + part + b"\0" for part in parts)))


class Row:
    """A row, or the static columns of a partition."""

    __slots__ = ("cells", "deletion", "marker")

    def __init__(self) -> None:
        self.marker: Marker | None = None
        self.deletion: Deletion | None = None
        self.cells: dict[str, Cell] = {}

    def at(self, now_s: int) -> Row:
        """Return a copy of what a replica has at this second: what has expired is deleted.

        Against a value of the same write time, a deletion wins (``AbstractCell.purge``).
        """
        made = self.copy()
        for name, cell in self.cells.items():
            if cell.ttl_s and not cell.is_live(now_s):
                made.cells[name] = Cell(cell.at_us, None, 0, cell.ends_s - cell.ttl_s)
        return made

    def copy(self) -> Row:
        """Return a copy."""
        made = Row()
        made.marker, made.deletion, made.cells = self.marker, self.deletion, dict(self.cells)
        return made

    def merge(self, other: Row) -> None:
        """Take over what another version of the row has."""
        self.marker = _later_marker(self.marker, other.marker)
        self.deletion = _later(self.deletion, other.deletion)
        cells = self.cells
        for column, cell in other.cells.items():
            mine = cells.get(column)
            cells[column] = cell if mine is None else resolve(mine, cell)
        if self.deletion is not None:
            self.shadow(self.deletion.at_us)

    def shadow(self, until_us: int) -> None:
        """Drop what was written up to a time."""
        if self.marker is not None and self.marker.at_us <= until_us:
            self.marker = None
        if any(cell.at_us <= until_us for cell in self.cells.values()):
            self.cells = {name: cell for name, cell in self.cells.items() if cell.at_us > until_us}

    def is_live(self, now_s: int) -> bool:
        """Whether a read sees the row."""
        if self.marker is not None and self.marker.is_live(now_s):
            return True
        return any(cell.is_live(now_s) for cell in self.cells.values())

    def live(self, now_s: int) -> dict[str, Any]:
        """Return the values that a read sees, by column."""
        return {column: cell.value for column, cell in self.cells.items() if cell.is_live(now_s)}

    def purge(self, before_s: int) -> None:
        """Forget what was deleted, or has expired, before this second."""
        self.cells = {
            name: cell
            for name, cell in self.cells.items()
            if not cell.ends_s or cell.ends_s >= before_s
        }
        if self.marker is not None and self.marker.ttl_s and self.marker.ends_s < before_s:
            self.marker = None
        if self.deletion is not None and self.deletion.made_s < before_s:
            self.deletion = None

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing, not even a tombstone."""
        return not self.cells and self.marker is None and self.deletion is None


class Extent(NamedTuple):
    """The rows of a partition that a read has come to: no others are repaired.

    Attributes:
        selects: Whether the statement selects rows whose clustering is, or begins, so.
        after: The last row of the page before; None: there was none.
        upto: The row that filled this page; None: it has room for more.
    """

    selects: Callable[[Clustering], bool] = lambda _: True
    after: Clustering | None = None
    upto: Clustering | None = None

    def has(self, clustering: Clustering) -> bool:
        """Whether it has this row, or all rows that begin so."""
        size = len(clustering)
        return (
            (self.after is None or self.after[:size] < clustering)
            and (self.upto is None or self._ends_behind(clustering))
            and self.selects(clustering)
        )

    def _ends_behind(self, clustering: Clustering) -> bool:
        upto = self.upto or ()
        return upto == clustering or upto[: len(clustering)] > clustering


WHOLE: Final = Extent()


class Partition:
    """The rows under one partition key.

    Attributes:
        deletion: That of the whole partition.
        slices: The deletion of all rows whose clustering begins so.
        order: The clusterings of `rows`, in order.
    """

    __slots__ = ("deletion", "order", "rows", "slices", "static")

    def __init__(self) -> None:
        self.deletion: Deletion | None = None
        self.slices: dict[Clustering, Deletion] = {}
        self.static = Row()
        self.rows: dict[Clustering, Row] = {}
        self.order: list[Clustering] = []

    def row(self, clustering: Clustering) -> Row:
        """Return a row; make it if it is missing."""
        found = self.rows.get(clustering)
        if found is None:
            found = self.rows[clustering] = Row()
            insort(self.order, clustering)
        return found

    def merge(self, other: Partition) -> None:
        """Take over what another version of the partition has."""
        self.deletion = _later(self.deletion, other.deletion)
        self.static.merge(other.static)
        for clustering, row in other.rows.items():
            self.row(clustering).merge(row)
        for prefix, deletion in other.slices.items():
            known = self.slices.get(prefix)
            self.slices[prefix] = deletion if known is None else max(known, deletion)
        if self.deletion is not None or self.slices:
            self._shadow()

    def _shadow(self) -> None:
        """Drop what deletions of the partition and of slices have removed."""
        if self.deletion is not None:
            until_us = self.deletion.at_us
            self.static.shadow(until_us)
            for row in self.rows.values():
                row.shadow(until_us)
        for prefix, deletion in self.slices.items():
            for clustering in self.order[bisect_left(self.order, prefix) :]:
                if clustering[: len(prefix)] != prefix:
                    break
                self.rows[clustering].shadow(deletion.at_us)
        self._forget_empty()

    def purge(self, before_s: int) -> None:
        """Forget deletions that were made before this second, and what expired before it.

        A compaction of all of a partition's data does so (``CompactionController``).
        """
        if self.deletion is not None and self.deletion.made_s < before_s:
            self.deletion = None
        self.slices = {prefix: one for prefix, one in self.slices.items() if one.made_s >= before_s}
        for row in (self.static, *self.rows.values()):
            row.purge(before_s)
        self._forget_empty()

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing, not even a tombstone."""
        return not (self.rows or self.slices or self.deletion) and self.static.is_empty

    def _forget_empty(self) -> None:
        empty = [clustering for clustering, row in self.rows.items() if row.is_empty]
        for clustering in empty:
            del self.rows[clustering]
            del self.order[bisect_left(self.order, clustering)]

    def at(self, now_s: int) -> Partition:
        """Return a copy: what a replica answers to a read of this second."""
        return self._copied(lambda row: row.at(now_s))

    def copy(self) -> Partition:
        """Return a copy."""
        return self._copied(Row.copy)

    def _copied(self, copied: Callable[[Row], Row]) -> Partition:
        made = Partition()
        made.deletion, made.slices = self.deletion, dict(self.slices)
        made.static = copied(self.static)
        made.rows = {clustering: copied(row) for clustering, row in self.rows.items()}
        made.order = list(self.order)
        return made

    def live(self, now_s: int) -> Iterator[tuple[Clustering, Mapping[str, Any]]]:
        """Yield the rows that a read sees, in order, without their static columns."""
        for clustering in self.order:
            row = self.rows[clustering]
            if row.is_live(now_s):
                yield clustering, row.live(now_s)

    def is_live(self, now_s: int) -> bool:
        """Whether a read of keys sees the partition."""
        return self.static.is_live(now_s) or any(row.is_live(now_s) for row in self.rows.values())

    def written_at(self, at_us: int) -> Partition:
        """Return the change with another write time, as Paxos gives it (``Commit.Proposal``).

        A deletion is a microsecond earlier, so that what the same change inserts outlives it.
        """
        made = self.copy()
        if made.deletion is not None:
            made.deletion = made.deletion._replace(at_us=at_us - 1)
        made.slices = {key: one._replace(at_us=at_us - 1) for key, one in made.slices.items()}
        for row in (made.static, *made.rows.values()):
            # A tombstone, too (``AbstractCell.updateAllTimestamp``).
            row.cells = {
                name: one._replace(at_us=at_us if one.value is not None else at_us - 1)
                for name, one in row.cells.items()
            }
            if row.marker is not None:
                row.marker = row.marker._replace(at_us=at_us)
            if row.deletion is not None:
                row.deletion = row.deletion._replace(at_us=at_us - 1)
        return made

    def missing_in(
        self, other: Partition | None, columns: frozenset[str], extent: Extent = WHOLE
    ) -> Partition | None:
        """Return what another replica lacks of this merged version: what read repair writes to it.

        Args:
            columns: The columns that the read selects: only these are repaired [P4].
            extent: The rows that it has come to.
        """
        mine, theirs = self, Partition() if other is None else other
        repair = Partition()
        is_any = False
        if mine.deletion is not None and mine.deletion != theirs.deletion:
            repair.deletion, is_any = mine.deletion, True
        for prefix, deletion in mine.slices.items():
            if theirs.slices.get(prefix) != deletion and extent.has(prefix):
                repair.slices[prefix], is_any = deletion, True
        if _differs(mine.static, theirs.static, columns, repair.static):
            is_any = True
        for clustering, row in mine.rows.items():
            made = Row()
            if extent.has(clustering) and _differs(
                row, theirs.rows.get(clustering, _NO_ROW), columns, made
            ):
                repair.row(clustering).merge(made)
                is_any = True
        return repair if is_any else None


_NO_ROW: Final = Row()


def _differs(mine: Row, theirs: Row, columns: frozenset[str], repair: Row) -> bool:
    """Note in ``repair`` what ``theirs`` lacks; return whether there is anything."""
    if mine.marker != theirs.marker:
        repair.marker = mine.marker
    if mine.deletion != theirs.deletion:
        repair.deletion = mine.deletion
    for column, cell in mine.cells.items():
        if column in columns and theirs.cells.get(column) != cell:
            repair.cells[column] = cell
    return not repair.is_empty
