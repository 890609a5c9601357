"""Define the versions of rows that only CASes write, and the outcomes of a CAS (G2, G3). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgpack

from cassieq_spark.errors import RowCorrupt

T = TypeVar("T")

TAGGED_CLIENTS: Final = 64
"""The number of clients whose last CAS a row remembers [R8]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """The last CAS of one client on one row; ``row_version`` is the version that it wrote."""

    client: UUID
    writer: UUID
    row_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The last CAS of each of the last 64 clients, oldest first.

    Attributes:
        evicted: The largest row version that was pushed out. It is never a condition: it only says
            that a missing tag of ours may have been there, so that callers must check the CAS's
            effects [R8].
    """

    entries: tuple[Tag, ...] = ()
    evicted: int = 0

    def has(self, writer: UUID) -> bool:
        """Whether the CAS that wrote this uuid took effect."""
        return any(tag.writer == writer for tag in self.entries)

    def with_tag(self, tag: Tag) -> Tags:
        """Add a tag in place of the client's former one: a client has one CAS per row in flight."""
        entries = [old for old in self.entries if old.client != tag.client] + [tag]
        gone = entries[:-TAGGED_CLIENTS]
        return Tags(
            entries=tuple(entries[-TAGGED_CLIENTS:]),
            evicted=max([self.evicted, *(old.row_version for old in gone)]),
        )

    def encode(self) -> bytes:
        """Return the bytes of the ``tags`` column."""
        return bytes(
            msgpack.packb(
                [
                    self.evicted,
                    [[tag.client.bytes, tag.writer.bytes, tag.row_version] for tag in self.entries],
                ]
            )
        )

    @classmethod
    def decode(cls, stored: bytes | None) -> Tags:
        """Read the column.

        Raises:
            RowCorrupt: It cannot be read.
        """
        if stored is None:
            return cls()
        try:
            evicted, entries = msgpack.unpackb(stored)
            return cls(
                evicted=evicted,
                entries=tuple(
                    Tag(client=UUID(bytes=client), writer=UUID(bytes=writer), row_version=version)
                    for client, writer, version in entries
                ),
            )
        except (ValueError, TypeError) as error:
            raise RowCorrupt(
                f"a tags column cannot be read ({error}); was it written by hand?"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The columns that the CAS machinery adds to a row's value."""

    writer: UUID
    tags: Tags
    row_version: int

    @classmethod
    def of_row(cls, row: Any) -> Version:
        """Read the three columns of a CQL row."""
        return cls(writer=row.writer, tags=Tags.decode(row.tags), row_version=row.row_version)

    @property
    def last_client(self) -> UUID | None:
        """The client whose CAS wrote this version."""
        return self.tags.entries[-1].client if self.tags.entries else None

    @property
    def columns(self) -> tuple[UUID, bytes, int]:
        """``writer, tags, row_version`` as every LWT statement binds them."""
        return self.writer, self.tags.encode(), self.row_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[T]):
    """A row as read: its value, and the version that a CAS on it is conditional on."""

    value: T
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(Generic[T]):
    """The CAS happened; ``now`` is the row as it wrote it, or as others left it since.

    Attributes:
        was_sent_once: Its first sending was answered, so no copy of it is on its way: the row will
            never have this version again, not even if it is removed and a late INSERT makes it anew
            [T3].
    """

    now: Stored[T]
    was_sent_once: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Generic[T]):
    """The CAS did not happen and cannot any more; ``now`` is the row as read since, or None.

    The exception: if ``now`` is None, or of a bucket below the repair pointer, the CAS may have
    happened before the row was dropped. Only the pointer, read after ``now``, tells (G5, ADR 11).

    Attributes:
        was_sent_once: Its first sending was answered: whatever became of the row, the CAS did not
            happen [T9].
    """

    now: Stored[T] | None
    was_sent_once: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(Generic[T]):
    """The tags cannot settle it: more than 64 clients came later. Check its effects in ``now``."""

    now: Stored[T]


Outcome = Applied[T] | Refused[T] | Evicted[T]
