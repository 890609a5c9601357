"""The driver's private parts that we replace do what the driver's own do, byte for byte."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from cassandra.connection import CrcMismatchException, ProtocolError, _ConnectionIOBuffer
from cassandra.segment import Segment, SegmentCodec

from cassieq_spark.entropy import generator
from cassieq_spark.store.driver import Connection, Segments

LONGEST = Segment.MAX_PAYLOAD_LENGTH
SMALL = [9, 10, 200, 17, 4_000]
LARGE = [LONGEST - 1, 9, LONGEST, LONGEST + 1, 50, 3 * LONGEST, 3 * LONGEST + 7, 9, 1 << 20, 60_000]


def _encoded(codec: SegmentCodec, message: bytes) -> bytes:
    buffer = io.BytesIO()
    codec.encode(buffer, message)
    return buffer.getvalue()


def _messages(lengths: Sequence[int]) -> list[bytes]:
    """Answers of protocol 5, of so many bytes with their headers."""
    random = generator(len(lengths))
    return [
        struct.pack(">BBhBi", 0x85, 0, stream, 8, length - 9) + random.randbytes(length - 9)
        for stream, length in enumerate(lengths)
    ]


class _Listening:
    """Receives without a socket."""

    def __init__(self: Any, *, is_started: bool = True) -> None:
        self.endpoint = "node"
        self._is_checksumming_enabled = False
        self._current_frame: Any = None
        self._io_buffer = _ConnectionIOBuffer(self)
        if is_started:
            self._enable_checksumming()
        self.received: list[tuple[int, bytes]] = []
        self.failure: Exception | None = None

    @property
    def _iobuf(self) -> io.BytesIO:
        return self._io_buffer.io_buffer  # type: ignore[no-any-return]

    def process_msg(self: Any, header: Any, body: bytes) -> None:
        if not self._is_checksumming_enabled:
            self._enable_checksumming()  # as by the answer to STARTUP
        assert (5, 0, 8) == (header.version, header.flags, header.opcode)
        assert header.end_pos - header.body_offset == len(body)
        self.received.append((header.stream, body))

    def defunct(self, failure: Exception) -> None:
        self.failure = failure

    def read(self: Any, data: bytes, at_once: int) -> None:
        for at in range(0, len(data), at_once):
            self._iobuf.write(data[at : at + at_once])
            self.process_io_buffer()


class _Ours(_Listening, Connection):
    pass


def _heard(data: bytes, at_once: int, *, by: type[Any] = _Ours) -> list[tuple[int, bytes]]:
    listening = by()
    listening.read(data, at_once)
    assert listening.failure is None
    assert not listening._iobuf.tell()
    return listening.received  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "length", [9, LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1, 1 << 20]
)
def test_segments_are_those_of_the_driver(length: int) -> None:
    message = generator(length).randbytes(length)
    assert _encoded(Segments(), message) == _encoded(SegmentCodec(), message)


@pytest.mark.parametrize(
    ("lengths", "at_once"),
    [(SMALL, cut) for cut in (1, 2, 5, 6, 7, 100, 1 << 20)]
    + [(LARGE, cut) for cut in (4_096, LONGEST, LONGEST + 10, LONGEST + 11, 1 << 19, 1 << 23)],
)
def test_messages_are_received_whole_wherever_a_read_ends(lengths: list[int], at_once: int) -> None:
    messages = _messages(lengths)
    data = b"".join(_encoded(Segments(), one) for one in messages)
    assert [(at, one[9:]) for at, one in enumerate(messages)] == _heard(data, at_once)


@pytest.mark.parametrize("at_once", [300, 5_000, 1 << 20])
def test_a_segment_may_hold_several_messages(at_once: int) -> None:
    messages = _messages([*SMALL, LONGEST + 1])
    *small, long = messages
    data = _encoded(Segments(), b"".join(small)) + _encoded(Segments(), long)
    assert [(at, one[9:]) for at, one in enumerate(messages)] == _heard(data, at_once)


@pytest.mark.parametrize("behind", [0, 3, 6, 300, 1 << 20])
def test_what_follows_the_answer_that_begins_segments_is_not_lost(behind: int) -> None:
    first, *others = _messages([20, 9, 500])
    data = b"".join(_encoded(Segments(), one) for one in others)
    listening = _Ours(is_started=False)
    listening.read(first + data[:behind], 1 << 20)
    listening.read(data[behind:], 1 << 20)
    assert [(at, one[9:]) for at, one in enumerate([first, *others])] == listening.received


@pytest.mark.parametrize("length", [-1, -9, -10])
def test_a_message_of_less_than_nothing_ends_the_connection(length: int) -> None:
    header = struct.pack(">BBhBi", 0x85, 0, 1, 8, length)
    listening = _Ours()
    listening.read(_encoded(Segments(), header + bytes(20)), 1 << 20)
    assert isinstance(listening.failure, ProtocolError)


@pytest.mark.parametrize("at", [1, 4, 8, 100, 208])
def test_a_byte_that_has_changed_on_its_way_ends_the_connection(at: int) -> None:
    (message,) = _messages([200])
    data = bytearray(_encoded(Segments(), message))
    data[at] ^= 1
    listening = _Ours()
    listening.read(bytes(data) + bytes(LONGEST), 1 << 20)
    assert isinstance(listening.failure, CrcMismatchException)
    assert not listening.received
