"""The driver's private parts that we replace do what the driver's own do, byte for byte."""

from __future__ import annotations

import io

import pytest
from cassandra.segment import Segment, SegmentCodec

from cassieq_spark.entropy import generator
from cassieq_spark.store.driver import Segments

LONGEST = Segment.MAX_PAYLOAD_LENGTH


def _encoded(codec: SegmentCodec, message: bytes) -> bytes:
    buffer = io.BytesIO()
    codec.encode(buffer, message)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "length", [9, LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1, 1 << 20]
)
def test_segments_are_those_of_the_driver(length: int) -> None:
    message = generator(length).randbytes(length)
    assert _encoded(Segments(), message) == _encoded(SegmentCodec(), message)
