"""Compute ids, buckets, and id runs as a set algebra."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType, Self
from uuid import UUID

from cassieq_spark.errors import RowCorrupt

QueueName = NewType("QueueName", str)
LaneId = NewType("LaneId", UUID)
BucketNo = NewType("BucketNo", int)

FIRST_BUCKET: Final = BucketNo(0)

ID_LIMIT: Final = 1 << 62
"""The limit of ids, bucket numbers and counts of messages."""

OFFSET_LIMIT: Final = 1 << 31
"""The limit of offsets inside a bucket."""

ID_BITS: Final = (1 << 48) - 1
"""The bits of a derived message id that hold the id; its lane's bits are the others."""

VERSION_BITS: Final = 0xF << 76 | 0x3 << 62
VERSION_8: Final = 0x8 << 76 | 0x2 << 62
"""The version and variant of a UUID of version 8; its other bits are free."""

_FEW: Final = 8
"""The number of runs below which a linear search is faster."""

_ONE_BYTE: Final = 0x80
"""The first number that takes more than one byte as a varint, which has seven bits a byte."""

_VARINTS: Final = 0
_BITMAP: Final = 1


_WITH_TIME: Final = 7
"""The version of UUIDs that begin with the milliseconds since 1970, in 48 bits (RFC 9562)."""


class Place(NamedTuple):
    """A bucket of a queue. Each lane counts its buckets from 0: the number alone is ambiguous."""

    lane: LaneId
    bucket: BucketNo


def began_us(lease_id: UUID) -> int | None:
    """Return when a delivery began, in cluster time, to the millisecond; None if it is unknown.

    Lease ids of older releases do not hold it.
    """
    return (lease_id.int >> 80) * 1_000 if lease_id.version == _WITH_TIME else None


def bucket_of(message_id: int, bucket_size: int) -> BucketNo:
    """Return the bucket that holds this id."""
    return BucketNo(message_id // bucket_size)


def first_id(bucket: BucketNo, bucket_size: int) -> int:
    """Return the id at offset 0 of this bucket."""
    return bucket * bucket_size


@dataclass(frozen=True, slots=True)
class Runs:
    """A set of offsets inside one bucket, as runs.

    Attributes:
        pairs: (first, last), both included; sorted, disjoint, never adjacent, so that equal sets
            are equal values. Build with `of`, `span` or `from_offsets`, which ensure that.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> Self:
        """Build from runs in any order; they may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(pairs):
            if not 0 <= first <= last < OFFSET_LIMIT:
                raise ValueError(f"run {first}..{last} is not inside a bucket")
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def span(cls, first: int, last: int) -> Self:
        """Build one run, both ends included."""
        return cls.of((first, last))

    @classmethod
    def from_offsets(cls, offsets: Iterable[int]) -> Self:
        """Build from single offsets in any order."""
        return cls.of(*((offset, offset) for offset in offsets))

    @property
    def count(self) -> int:
        """The number of offsets."""
        return sum(last - first + 1 for first, last in self.pairs)

    @property
    def first(self) -> int:
        """The lowest offset.

        Raises:
            IndexError: The set is empty.
        """
        return self.pairs[0][0]

    @property
    def last(self) -> int:
        """The highest offset.

        Raises:
            IndexError: The set is empty.
        """
        return self.pairs[-1][1]

    def __bool__(self) -> bool:
        """Whether the set is not empty."""
        return bool(self.pairs)

    def __contains__(self, offset: object) -> bool:
        """Whether this offset is in the set."""
        return isinstance(offset, int) and bool(
            (at := bisect_right(self.pairs, (offset, OFFSET_LIMIT)))
            and offset <= self.pairs[at - 1][1]
        )

    def offsets(self) -> Iterator[int]:
        """Yield each offset, ascending."""
        for first, last in self.pairs:
            yield from range(first, last + 1)

    def __or__(self, other: Runs) -> Runs:
        """Return the union."""
        if not other.pairs:
            return self
        if not self.pairs:
            return other
        return Runs.of(*self.pairs, *other.pairs)

    def __and__(self, other: Runs) -> Runs:
        """Return the intersection."""
        if not self.pairs or not other.pairs:
            return EMPTY
        common: list[tuple[int, int]] = []
        left, right = _at(self.pairs, other.pairs[0][0]), _at(other.pairs, self.pairs[0][0])
        while left < len(self.pairs) and right < len(other.pairs):
            first = max(self.pairs[left][0], other.pairs[right][0])
            last = min(self.pairs[left][1], other.pairs[right][1])
            if first <= last:
                common.append((first, last))
            if self.pairs[left][1] < other.pairs[right][1]:
                left += 1
            else:
                right += 1
        return Runs(tuple(common))

    def __sub__(self, other: Runs) -> Runs:
        """Return the difference."""
        if not self.pairs or not other.pairs:
            return self
        rest: list[tuple[int, int]] = []
        at = _at(other.pairs, self.pairs[0][0])
        for first, last in self.pairs:
            start = first
            look = at = max(at, _at(other.pairs, first))
            while look < len(other.pairs) and other.pairs[look][0] <= last:
                if other.pairs[look][0] > start:
                    rest.append((start, other.pairs[look][0] - 1))
                start = max(start, other.pairs[look][1] + 1)
                look += 1
            if start <= last:
                rest.append((start, last))
        return Runs(tuple(rest))

    def issubset(self, other: Runs) -> bool:
        """Whether all offsets are in ``other``."""
        return not self - other

    def below(self, limit: int) -> Runs:
        """Return the offsets lower than ``limit``."""
        return Runs(
            tuple((first, min(last, limit - 1)) for first, last in self.pairs if first < limit)
        )

    def take(self, count: int) -> tuple[Runs, Runs]:
        """Return (the lowest ``count`` offsets or all, the rest)."""
        taken: list[tuple[int, int]] = []
        for at, (first, last) in enumerate(self.pairs):
            size = last - first + 1
            if size > count:
                if count > 0:
                    taken.append((first, first + count - 1))
                return Runs(tuple(taken)), Runs(
                    ((first + max(count, 0), last), *self.pairs[at + 1 :])
                )
            taken.append((first, last))
            count -= size
        return Runs(tuple(taken)), EMPTY

    def encode(self) -> bytes:
        """Encode as stored in rows: differences as varints, or a bitmap if that is smaller."""
        if len(self.pairs) == 1:
            first, last = self.pairs[0]
            if last < _ONE_BYTE:  # most leases have one message, so their speed is the row's
                return bytes((_VARINTS, first, last - first))
        varints = bytearray((_VARINTS,))
        before = 0
        for first, last in self.pairs:
            _put_varint(varints, first - before)
            _put_varint(varints, last - first)
            before = last
        if not self.pairs or len(varints) <= self.last // 8 + 2:
            return bytes(varints)
        bits = 0
        for first, last in self.pairs:
            bits |= ((1 << (last - first + 1)) - 1) << first
        return bytes([_BITMAP]) + bits.to_bytes(self.last // 8 + 1, "little")

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            RowCorrupt: It is not an encoded set.
        """
        try:
            form = encoded[0]
            if form == _VARINTS:
                return cls(_from_varints(encoded))
            if form == _BITMAP:
                return cls(_from_bitmap(encoded[1:]))
        except (IndexError, ValueError) as error:
            raise RowCorrupt(f"an id set cannot be read ({error}); was the row altered?") from error
        raise RowCorrupt(f"an id set of unknown form {form}; was it written by a newer release?")


EMPTY: Final = Runs()


def union(parts: Iterable[Runs]) -> Runs:
    """Return the union of all parts."""
    return Runs.of(*(pair for part in parts for pair in part.pairs))


def derived_message_id(lane: LaneId, message_id: int) -> UUID:
    """Derive the message id of a message whose writer chose none: a version 8 UUID of lane and id.

    The first 74 free bits are the lane's, the last 48 the id (modulo 2**48): unique in a lane, and
    across lanes as unique as 74 random bits are. Nothing is stored for it.
    """
    return UUID(int=_derived(lane, message_id))


def message_id_of(lane: LaneId, number: int, chosen: bytes | None) -> str:
    """Return the message id that users see: the writer's 16 bytes, or lane and id encoded."""
    if chosen is not None:
        return str(UUID(bytes=chosen))
    text = f"{_derived(lane, number):032x}"  # a UUID made for its text alone takes twice as long
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _derived(lane: LaneId, number: int) -> int:
    value = lane.int & ~ID_BITS | number & ID_BITS
    return value & ~VERSION_BITS | VERSION_8


def _at(pairs: tuple[tuple[int, int], ...], offset: int) -> int:
    """Return the index of the run that may hold this offset: all runs before it end below.

    A row may have as many runs as messages, and callers ask for one message at a time [T2].
    """
    if len(pairs) < _FEW:
        return 0
    return max(0, bisect_right(pairs, (offset, OFFSET_LIMIT)) - 1)


def _put_varint(out: bytearray, value: int) -> None:
    while value >= _ONE_BYTE:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _from_varints(encoded: bytes) -> tuple[tuple[int, int], ...]:
    values: list[int] = []
    value = shift = 0
    for byte in encoded[1:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value = shift = 0
    if shift or len(values) % 2:
        raise ValueError("it ends in the middle")
    pairs: list[tuple[int, int]] = []
    before = 0
    for at in range(0, len(values), 2):
        first = before + values[at]
        before = first + values[at + 1]
        if pairs and first <= pairs[-1][1] + 1:
            raise ValueError("its runs touch")
        if before >= OFFSET_LIMIT:
            raise ValueError("it is too large")
        pairs.append((first, before))
    return tuple(pairs)


def _from_bitmap(encoded: bytes) -> tuple[tuple[int, int], ...]:
    bits = int.from_bytes(encoded, "little")
    if not encoded or not encoded[-1]:
        raise ValueError("its bitmap has no end")
    pairs: list[tuple[int, int]] = []
    at = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        size = ((bits + 1) & ~bits).bit_length() - 1
        bits >>= size
        at += gap
        pairs.append((at, at + size - 1))
        at += size
    return tuple(pairs)
