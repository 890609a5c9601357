"""Define the sizes of chunks, parts and bodies. It imports nothing: options need it early."""

from __future__ import annotations

from typing import Final

CHUNK_MESSAGES: Final = 2_500
CHUNK_BYTES: Final = 256 * 1024
"""The limits of a chunk; the first that is reached ends it. They were measured best for writes
and reads. A smaller count would make chunks of small messages smaller than all others: 1,000 of
96 bytes a chunk are written at 0.84 of this speed."""

MAX_CHUNK_MESSAGES: Final = 4_096
"""The most messages of a chunk: a reader looks this far back for the chunk that holds an offset."""

PART_BYTES: Final = 1024 * 1024
"""The size above which a payload is stored in several parts: Cassandra refuses a mutation above
half a commit-log segment, and large ones overload it first [R15]."""

WRITTEN_TOGETHER: Final = 2
WRITTEN_TOGETHER_BYTES: Final = 640 * 1024
"""The limits of one mutation of several chunks of a bucket. Two of the usual size take a twelfth
less CPU in the node, and a seventh less in the client; four gain nothing more."""

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""The largest message body."""

MAX_EXTRA_BYTES: Final = 1024 * 1024
"""The most bytes of a message's tag and headers together, in UTF-8."""

BUCKET_BYTES: Final = 32 * 1024**2
"""The size at which a bucket, which is one Cassandra partition, is closed early [R15]."""

BYTES_IN_FLIGHT: Final = 8 * 1024**2
"""The most unanswered bytes of one writer: with more, a node refuses connections as overloaded."""

OFFLOAD_BYTES: Final = 1 << 16
OFFLOAD_ENTRIES: Final = 256
"""The bytes or messages from which on a put is packed, or a chunk decoded, in a thread: that
takes longer than the switch of threads, and other calls would wait for it."""
