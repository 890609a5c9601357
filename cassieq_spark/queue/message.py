"""`Message` is what a look shows, and `Delivery` what a consumer gets: a message under a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, ClassVar, TypeVar
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

M = TypeVar("M", bound="Message")

_SHOWN_BYTES = 32
_BYTES_OF_A_CHUNK = 4_096
"""The bytes that can be copied in the time that decoding a chunk takes, however small it is."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message, as `Queue.peek` and `Client.browse` show it; a get returns a `Delivery`.

    Attributes:
        message_id: A UUID as text: the producer's, or one derived from lane and id.
        id: The message's number in its lane. The ids of one producer ascend.
        tag, headers, group: The values that it was put with; None or empty if there are none.
        delivery_count: The number of deliveries so far: 1 in the first, 0 if there was none.
        enqueued_at: UTC, by the cluster's clock.
        lane: The part of the queue that holds it; ``id`` is its number there. A later queue of the
            same name has other lanes.
        priority: The priority that it was put with. Higher priorities are handed out first.
    """

    message_id: str
    id: int
    body: bytes
    tag: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery_count: int
    enqueued_at: datetime
    lane: LaneId
    priority: int = 0
    group: str | None = None

    # pydantic, and so FastAPI, writes a body into JSON like this, because not every body is text.
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64"}

    def __post_init__(self) -> None:
        freeze(self, "headers")

    @property
    def uuid(self) -> UUID:
        """The message id as a UUID."""
        return UUID(self.message_id)

    def __repr__(self) -> str:
        """Show the message with at most the first bytes of its body."""
        body = repr(self.body[:_SHOWN_BYTES])
        if len(self.body) > _SHOWN_BYTES:
            body += f"... ({len(self.body)} bytes)"
        return (
            f"{type(self).__name__}(message_id={self.message_id!r}, id={self.id}, body={body}, "
            f"tag={self.tag!r}, delivery_count={self.delivery_count})"
        )


@frozen
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Delivery(Message):
    """A delivery of one message: nobody else gets the message before its lease ends.

    Attributes:
        visible_until: The end of the lease, UTC.
    """

    visible_until: datetime
    _proof: Receipt

    @property
    def receipt(self) -> str:
        """The text that acks, extends or releases this delivery in any process."""
        return self._proof.encode()

    @property
    def fence(self) -> int:
        """A number that grows with every delivery of this message: a fencing token.

        Let your database refuse a write with a lower number than it has seen for this queue and
        ``id``. Then a consumer that slept through its lease changes nothing. The number is the
        delivery count, which the CAS that grants a lease increases. A count that was taken back was
        never handed to a consumer.
        """
        return self.delivery_count


Held = Delivery | str
"""A delivery, or its receipt."""


def proof_of(delivery: Delivery) -> Receipt:
    """Return the content of a delivery's receipt."""
    return delivery._proof  # noqa: SLF001 - the engine's part of it


def updated(delivery: Delivery, body: bytes | None, lease: Lease | None, now_us: int) -> Delivery:
    """Return a delivery as it is after an update.

    Args:
        body: None: unchanged.
        lease: None: the message was given back, so its receipt is stale.
    """
    proof = proof_of(delivery)
    return replace(
        delivery,
        body=delivery.body if body is None else body,
        visible_until=time_of(now_us if lease is None else lease.until_us),
        _proof=proof if lease is None else replace(proof, lease_id=lease.lease_id),
    )


def read_messages(lane: Lane, plan: Sequence[Planned]) -> AsyncIterator[Message]:
    """Yield the planned messages, in the order of the plan, without a lease.

    Args:
        lane: Any lane of the queue.

    Raises:
        DataLoss: A planned message does not exist; never raised for a look.
    """
    return _read(lane, plan, _shown)


async def read_deliveries(lane: Lane, plan: Sequence[tuple[Planned, Lease]]) -> list[Delivery]:
    """Read leased messages, in the order of the plan; of due lanes, first ones by their due times.

    This client will read the rest of their chunks, too; see `fetch`.

    Args:
        lane: Any lane of the queue.
        plan: Entries, each with the lease that it belongs to.

    Raises:
        DataLoss: A planned message does not exist.
    """
    leases = {(one.lane, one.bucket, one.lease_id): lease for one, lease in plan}
    due_us: dict[tuple[LaneId, int], int] = {}

    def delivered(lane: Lane, found: Found) -> list[Delivery]:
        planned = found.planned
        lease = leases[planned.lane, planned.bucket, planned.lease_id]
        visible_until = time_of(lease.until_us)
        made = [
            Delivery(
                **fields,
                visible_until=visible_until,
                _proof=Receipt(
                    lane=planned.lane,
                    bucket=planned.bucket,
                    lease_id=lease.lease_id,
                    first=offset,
                    last=offset,
                ),
            )
            for offset, fields in _fields(lane, found)
        ]
        if (its_us := found.chunk.due_us) is not None and lane.due is not None:
            due_us.update({(one.lane, one.id): its_us for one in made if one.delivery_count == 1})
        return made

    reading = _read(lane, [one for one, _ in plan], delivered, goes_on=True)
    messages = [message async for message in reading]
    if not due_us:
        return messages
    return [
        message
        for is_due, some in groupby(messages, key=lambda one: (one.lane, one.id) in due_us)
        for message in (sorted(some, key=lambda one: due_us[one.lane, one.id]) if is_due else some)
    ]


async def _read(
    lane: Lane,
    plan: Sequence[Planned],
    make: Callable[[Lane, Found], list[M]],
    *,
    goes_on: bool = False,
) -> AsyncIterator[M]:
    made_bytes = 0
    async for found in fetch(lane.store, lane.queue, lane.fixed, plan, goes_on=goes_on):
        made = partial(make, lane.sibling(found.planned.lane), found)
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


def _shown(lane: Lane, found: Found) -> list[Message]:
    return [Message(**fields) for _, fields in _fields(lane, found)]


def _fields(lane: Lane, found: Found) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the offset of each message of a chunk, and the fields of a `Message`."""
    planned, row = found.planned, found.chunk
    base = first_id(planned.bucket, lane.bucket_size)
    priority = lane.priority
    enqueued_at = time_of(row.enqueued_us)
    batch = chunks.decode(row.payload)
    has_groups = chunks.may_have_groups(batch)
    for at, stored in chunks.rows(batch, found.positions):
        headers, group = groups.split(stored.headers) if has_groups else (stored.headers, None)
        offset = row.first + at
        yield (
            offset,
            {
                "message_id": message_id_of(lane.lane_id, base + offset, stored.message_id),
                "id": base + offset,
                "body": found.bodies.get(offset, stored.body),
                "tag": stored.tag,
                "headers": headers,
                "delivery_count": planned.delivery_count,
                "enqueued_at": enqueued_at,
                "lane": lane.lane_id,
                "priority": priority,
                "group": group,
            },
        )
