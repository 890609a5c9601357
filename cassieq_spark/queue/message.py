"""`Message` is what a consumer gets. It is built from a lease and its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf
from typing import ClassVar
from uuid import UUID

from cassieq_spark.model import group as groups
from cassieq_spark.model.bucket import Lease
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import LaneId, first_id, message_id_of
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.sizes import OFFLOAD_BYTES
from cassieq_spark.queue.fetch import Found, Planned, fetch
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store import chunk as chunks
from cassieq_spark.store.caller import off_loop

_SHOWN_BYTES = 32
_BYTES_OF_A_CHUNK = 4_096
"""The bytes that can be copied in the time that decoding a chunk takes, however small it is."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message, as one delivery or one peek returns it.

    Attributes:
        message_id: A UUID as text: the producer's, or one derived from lane and id.
        id: The message's number in its lane. The ids of one producer ascend.
        tag, headers, group: The values that it was put with; None or empty if there are none.
        proof: The content of ``receipt``.
        delivery_count: 1 at the first delivery.
        enqueued_at: UTC, by the cluster's clock.
        visible_until: The end of the lease, UTC; None for a peek.
        lane: The part of the queue that holds it; ``id`` is its number there. A later queue of the
            same name has other lanes.
        priority: The priority that it was put with. Higher priorities are handed out first.
    """

    message_id: str
    id: int
    body: bytes
    tag: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    proof: Receipt | None
    delivery_count: int
    enqueued_at: datetime
    visible_until: datetime | None
    lane: LaneId
    priority: int = 0
    group: str | None = None

    # pydantic, and so FastAPI, writes a body into JSON like this, because not every body is text.
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64"}

    def __post_init__(self) -> None:
        freeze(self, "headers")

    @property
    def receipt(self) -> str | None:
        """The text that acks, extends or releases this delivery in any process; None for a peek."""
        return None if self.proof is None else self.proof.encode()

    @property
    def fence(self) -> int:
        """A number that grows with every delivery of this message: a fencing token.

        Let your database refuse a write with a lower number than it has seen for this queue and
        ``id``. Then a consumer that slept through its lease changes nothing. The number is the
        delivery count, which the CAS that grants a lease increases. A count that was taken back was
        never handed to a consumer.
        """
        return self.delivery_count

    @property
    def uuid(self) -> UUID:
        """The message id as a UUID."""
        return UUID(self.message_id)

    def updated(self, receipt: Receipt, body: bytes | None, lease: Lease | None) -> Message:
        """Return the message as it is after an update by this receipt.

        Args:
            body: None: unchanged.
            lease: None: the message was given back.
        """
        return replace(
            self,
            body=self.body if body is None else body,
            proof=None if lease is None else replace(receipt, lease_id=lease.lease_id),
            visible_until=None if lease is None else time_of(lease.until_us),
        )

    def __repr__(self) -> str:
        """Show the message with at most the first bytes of its body."""
        body = repr(self.body[:_SHOWN_BYTES])
        if len(self.body) > _SHOWN_BYTES:
            body += f"... ({len(self.body)} bytes)"
        return (
            f"Message(message_id={self.message_id!r}, id={self.id}, body={body}, "
            f"tag={self.tag!r}, delivery_count={self.delivery_count})"
        )


async def read_messages(
    lane: Lane,
    plan: Iterable[tuple[Planned, int | None]],
    *,
    goes_on: bool = False,
) -> AsyncIterator[Message]:
    """Yield the planned messages, in the order of the plan.

    Args:
        lane: Any lane of the queue.
        plan: Entries, each with the end of its lease in cluster µs, or None for a peek.
        goes_on: Whether this client will read the rest of their chunks. See `fetch`.

    Raises:
        DataLoss: A planned message does not exist; never raised for a peek.
    """
    entries = list(plan)
    until_us = {
        (planned.lane, planned.bucket, planned.lease_id): until for planned, until in entries
    }
    planned_reads = [planned for planned, _ in entries]
    made_bytes = 0
    async for found in fetch(lane.store, lane.queue, lane.fixed, planned_reads, goes_on=goes_on):
        planned = found.planned
        until = until_us[planned.lane, planned.bucket, planned.lease_id]
        made = partial(_messages, lane.sibling(planned.lane), found, until)
        many = found.chunk.count if found.keep is None else found.keep.count
        size = len(found.chunk.payload)
        for message in await off_loop(made, entries=many, size_bytes=size):
            made_bytes += len(message.body)
            yield message
        # Chunks that are small as stored may be large, or many: others have their turn in between.
        made_bytes += _BYTES_OF_A_CHUNK
        if made_bytes >= OFFLOAD_BYTES:
            made_bytes = 0
            await asyncio.sleep(0)


async def in_groups(
    messages: AsyncIterator[Message], *, most: int, most_bytes: float = inf
) -> AsyncIterator[list[Message]]:
    """Split messages into lists of at most ``most``; each ends when it has ``most_bytes``."""
    some: list[Message] = []
    size_bytes = 0
    async for message in messages:
        some.append(message)
        size_bytes += len(message.body)
        if len(some) >= most or size_bytes >= most_bytes:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _messages(lane: Lane, found: Found, until_us: int | None) -> list[Message]:
    made: list[Message] = []
    planned, row = found.planned, found.chunk
    base = first_id(planned.bucket, lane.bucket_size)
    priority = lane.priority
    enqueued_at = time_of(row.enqueued_us)
    visible_until = None if until_us is None else time_of(until_us)
    batch = chunks.decode(row.payload)
    has_groups = chunks.may_have_groups(batch)
    for at, stored in chunks.rows(batch, found.positions):
        headers, group = groups.split(stored.headers) if has_groups else (stored.headers, None)
        offset = row.first + at
        proof = None
        if planned.lease_id is not None:
            proof = Receipt(
                lane=lane.lane_id,
                bucket=planned.bucket,
                lease_id=planned.lease_id,
                first=offset,
                last=offset,
            )
        message = Message(
            message_id=message_id_of(lane.lane_id, base + offset, stored.message_id),
            id=base + offset,
            body=found.bodies.get(offset, stored.body),
            tag=stored.tag,
            headers=headers,
            proof=proof,
            delivery_count=planned.delivery_count,
            enqueued_at=enqueued_at,
            visible_until=visible_until,
            lane=lane.lane_id,
            priority=priority,
            group=group,
        )
        made.append(message)
    return made
