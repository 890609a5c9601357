"""Define the sizes of chunks, parts and bodies. It imports nothing: options are parsed first."""

from __future__ import annotations

from typing import Final

CHUNK_MESSAGES: Final = 2_500
CHUNK_BYTES: Final = 256 * 1024
"""A chunk holds about this much, whichever comes first: measured best for writes and reads. A
smaller count would only make chunks of small messages smaller than all others: 1,000 of 96 bytes a
chunk are written at 0.84 of this speed."""

MAX_CHUNK_MESSAGES: Final = 4_096
"""The most messages of a chunk: a reader looks this far back for the chunk that holds an offset."""

PART_BYTES: Final = 1024 * 1024
"""A longer payload is stored in several parts: Cassandra refuses a mutation above half a commit-log
segment, and large ones overload it first [R15]."""

WRITTEN_TOGETHER: Final = 2
WRITTEN_TOGETHER_BYTES: Final = 640 * 1024
"""Chunks of one bucket go to a node so many at a time, as one mutation. Two of the usual size then
take a twelfth less CPU there, and a seventh less in the client; four gain nothing more."""

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""The largest message body."""

MAX_EXTRA_BYTES: Final = 1024 * 1024
"""The most bytes of a message's tag and headers together, in UTF-8."""

BUCKET_BYTES: Final = 32 * 1024**2
"""A bucket, which is one Cassandra partition, is closed early at this size [R15]."""

BYTES_IN_FLIGHT: Final = 8 * 1024**2
"""The limit of one writer: with more unanswered bytes a node refuses connections as overloaded."""

OFFLOAD_BYTES: Final = 1 << 16
OFFLOAD_MESSAGES: Final = 256
"""From so many bytes or messages on, a put is packed in a thread, and a chunk read in one: it takes
longer than the change of threads, and others would wait for it."""
