"""Which statements an operation sends: what ``metrics.STATEMENTS`` counted, as the model needs it.

`tests/unit/test_scale_model.py` compares them with what `python -m bench.programs` has counted, and
`tests/engine/test_scale_recipes.py` runs operations on a node and compares. So a change of the
package that costs other statements fails there, before these figures are wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.scale.parameters import KIND_OF, Kind
from cassieq_spark.model.sizes import BUCKET_BYTES, CHUNK_BYTES, CHUNK_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

BUCKET_SIZE: Final = 100_000
"""The default."""

PUT: Final = {"write_message": 1, "read_bucket": 1, "read_pointers": 1}
"""A put into a bucket that the producer has open; `write_message` once for each chunk."""

RESERVE: Final = {"read_monoton": 1, "reserve": 1}
"""What a fresh bucket adds to a put. A producer that is alone knows the row without a read."""

LOOK: Final = {"read_monoton": 1, "read_hints": 1}
"""The beginning of each get. Its pointers serve all gets of half a second."""

SEAL: Final = {
    "read_bucket": 2,
    "peek_bucket": 2,
    "read_pointers": 2,
    "insert_bucket": 1,
    "scan_messages": 1,
    "fill_bucket": 1,
    "write_hint": 1,
}
"""Closing an open bucket of a program, with the first claim in it: two LWTs. The scan reads its row
in vain, and its producer looks whether it is open still. What was scanned serves the gets that
follow, if they are this client's."""

CLAIM: Final = {"write_hint": 1, "update_bucket": 1}
"""A claim in a bucket that is sealed."""

DELIVER: Final = {"read_pointers": 1}
"""After a claim: is it real?"""

ACK: Final = {"update_bucket": 1}
"""An ack of a bucket's messages, by however many receipts: its client knows the row from the claim.
"""

IDLE_LOOK: Final = {"read_monoton": 1, "read_hints": 1}
"""A look of an idle consumer at one lane."""

DROP: Final = {"read_bucket": 3, "drop_messages": 1, "drop_overlays": 1, "delete_bucket": 1}
"""What repair does for each bucket that is done."""

SINK_BUCKET: Final = {
    "insert_bucket": 1,
    "read_pointers": 1,
    "fill_bucket": 1,
    "update_bucket": 1,
    "read_bucket": 1,
}
"""A bucket that a Spark task fills: opened, prepared, and made visible by the driver."""

SINK_RESERVE: Final = 0.25
"""Reservations of a task for each of its buckets: blocks of 1, 2, 4, 8."""

SINK_BATCH: Final = {"read_sink_serial": 1, "insert_sink": 1, "read_sink": 1, "update_sink": 1}
"""What a batch of the sink costs beside its buckets."""

SOURCE_BUCKET: Final = Counter(CLAIM) + Counter(ACK)
"""A bucket that a query reads whole: one claim and one ack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How messages are put and taken.

    Attributes:
        name: As the tables call it.
        group: Messages of one put, and of one get with its ack.
        bucket: Messages in a bucket when it is sealed.
        is_bulk: By Spark: whole buckets.
        body_bytes: Bytes of a message as stored.
    """

    name: str
    group: int
    bucket: int
    is_bulk: bool = False
    body_bytes: int = 100

    @property
    def filled(self) -> int:
        """Messages that fit into a bucket: by ids, or by 32 MB."""
        return max(1, min(self.bucket, BUCKET_BYTES // self.body_bytes))

    @property
    def chunk_messages(self) -> int:
        """Messages in one stored row."""
        by_bytes = max(1, CHUNK_BYTES // self.body_bytes)
        return min(CHUNK_MESSAGES, by_bytes, self.filled if self.is_bulk else self.group)

    def statements(self) -> Counter[str]:
        """Statements for each bucket, from its reservation to its drop."""
        return _bulk(self) if self.is_bulk else _programs(self)

    def by_kind(self) -> dict[Kind, float]:
        """The same for each message, by kind of statement."""
        found: dict[Kind, float] = dict.fromkeys(Kind, 0.0)
        for name, count in self.statements().items():
            found[KIND_OF[name]] += count / self.filled
        return found

    @property
    def lwts(self) -> float:
        """LWTs of a message, the drop of its bucket among them."""
        return self.by_kind()[Kind.LWT]


def _programs(use: Use) -> Counter[str]:
    puts = math.ceil(use.filled / use.group)
    chunks = puts * math.ceil(min(use.group, use.filled) / use.chunk_messages)
    gets = math.ceil(use.filled / use.group)
    found: Counter[str] = Counter()
    _add(found, RESERVE, 1)
    _add(found, PUT, puts)
    found["write_message"] += chunks - puts
    _add(found, LOOK, gets)
    found["read_bucket"] += gets - 1  # the row that is claimed from; the first get seals it
    _add(found, SEAL, 1)
    _add(found, CLAIM, gets - 1)  # the first claim is the seal's
    _add(found, DELIVER, gets)
    _add(found, ACK, gets)
    found["advance_pointer"] += 1
    _add(found, DROP, 1)
    return found


def _bulk(use: Use) -> Counter[str]:
    chunks = math.ceil(use.filled / use.chunk_messages)
    found: Counter[str] = Counter()
    _add(found, {name: count * SINK_RESERVE for name, count in RESERVE.items()}, 1)
    _add(found, SINK_BUCKET, 1)
    found["write_message"] += chunks
    found["read_bucket"] += 1
    _add(found, SOURCE_BUCKET, 1)
    found["read_messages"] += math.ceil(use.filled / 10_000)
    found["advance_pointer"] += 1
    _add(found, DROP, 1)
    return found


def _add(into: Counter[str], recipe: Mapping[str, float], times: float) -> None:
    for name, count in recipe.items():
        into[name] += count * times  # type: ignore[assignment]  # a mean of a bucket's may be less


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What waits, and what is there without any message.

    Attributes:
        queues: Queues of the keyspace.
        lanes: Lanes of each queue.
        consumers: Consumers that wait, each at one queue.
        repair_every_s: Between two passes of repair.
    """

    queues: int = 1
    lanes: int = 1
    consumers: int = 0
    repair_every_s: float = 60.0
    statements_per_pass: float = field(default=22.0)
