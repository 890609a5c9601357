"""Encode receipts: opaque proof of one delivery, as text.

A receipt is base64url without padding, in its one canonical form, over: version u8, lane 16 B,
bucket u64, lease 16 B, first u32, last u32, crc32 u32 of all before; big-endian. The fields that
vary between the messages of one delivery come last, so that many can be built at once from one
prefix.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import BucketNo, LaneId, Place, began_us

RECEIPT_VERSION: Final = 1
_PREFIX: Final = struct.Struct(">B16sQ16s")
_RANGE: Final = struct.Struct(">II")
_CRC: Final = struct.Struct(">I")

RAW_BYTES: Final = _PREFIX.size + _RANGE.size + _CRC.size
TEXT_LENGTH: Final = -(-RAW_BYTES * 4 // 3)


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The content of a receipt: messages ``first`` to ``last`` of a bucket, under one lease."""

    lane: LaneId
    bucket: BucketNo
    lease_id: UUID
    first: int
    last: int

    @property
    def began_us(self) -> int | None:
        """The cluster time at which the delivery began, to the millisecond; None if unknown.

        Lease ids of older releases do not hold it.
        """
        return began_us(self.lease_id)

    @property
    def place(self) -> Place:
        """The bucket that the messages are in."""
        return Place(self.lane, self.bucket)

    def encode(self) -> str:
        """Return the text that users see."""
        raw = prefix(self.lane, self.bucket, self.lease_id) + _RANGE.pack(self.first, self.last)
        raw += _CRC.pack(zlib.crc32(raw))
        return _text(raw)

    @classmethod
    def decode(cls, text: object) -> Self:
        """Read a receipt.

        Raises:
            ReceiptInvalid: It is not a receipt; the error says why. No other error is ever raised.
        """
        if not isinstance(text, str):
            raise ReceiptInvalid(f"a receipt is text, not {type(text).__name__}")
        if len(text) != TEXT_LENGTH:
            raise ReceiptInvalid(
                f"a receipt has {TEXT_LENGTH} characters, but this one has {len(text)}. Was it "
                "cut off?"
            )
        try:
            raw = base64.b64decode(
                text.encode("ascii") + b"=" * (-TEXT_LENGTH % 4), altchars=b"-_", validate=True
            )
        except (binascii.Error, UnicodeEncodeError, ValueError) as error:
            raise ReceiptInvalid("a receipt has only letters, digits, '-' and '_'") from error
        # Accept only text that the encoder writes: the last character has bits without a meaning,
        # and b64decode takes "+" and "/" for "-" and "_".
        if _text(raw) != text:
            raise ReceiptInvalid("this receipt is not as it was written. Was it altered?")
        if raw[0] != RECEIPT_VERSION:
            raise ReceiptInvalid(
                f"this receipt has version {raw[0]}, but this release reads version "
                f"{RECEIPT_VERSION}"
            )
        body, crc = raw[: -_CRC.size], raw[-_CRC.size :]
        if _CRC.pack(zlib.crc32(body)) != crc:
            raise ReceiptInvalid("the checksum of this receipt is wrong. Was it altered?")
        _, lane, bucket, lease_id = _PREFIX.unpack_from(body)
        first, last = _RANGE.unpack_from(body, _PREFIX.size)
        return cls(
            lane=LaneId(UUID(bytes=lane)),
            bucket=BucketNo(bucket),
            lease_id=UUID(bytes=lease_id),
            first=first,
            last=last,
        )


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def prefix(lane: LaneId, bucket: BucketNo, lease_id: UUID) -> bytes:
    """Return the common beginning of all receipts of one delivery."""
    return _PREFIX.pack(RECEIPT_VERSION, lane.bytes, bucket, lease_id.bytes)
