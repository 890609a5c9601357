"""`put` puts the messages of one request: those that have much in common go together."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import PutAmbiguous
from cassieq_spark.queue.put.results import PutResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.server.backend import Backend


class Common(NamedTuple):
    """Arguments of `Queue.put` that messages must have in common to be put together."""

    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    due_at: datetime | None = None
    ttl: float | None = None
    tag: str | None = None


_NOTHING: Final = Common()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to put, with the arguments of `Queue.put`.

    Attributes:
        message_id: None: a new one.
    """

    body: bytes
    headers: Mapping[str, str]
    common: Common = _NOTHING
    message_id: str | None = None
    dedup_key: str | None = None
    group: str | None = None


async def put(
    backend: Backend, queue: str, messages: Sequence[Outgoing]
) -> list[PutResult | Exception]:
    """Put messages; return for each its result, or the error that kept it out.

    Those that differ in anything that `Common` has go side by side.
    """
    by_common: dict[Common, list[int]] = {}
    for at, message in enumerate(messages):
        by_common.setdefault(message.common, []).append(at)
    if len(by_common) == 1:  # as usual, and then no further task is needed
        return await _together(backend, queue, messages[0].common, messages)
    answers = await asyncio.gather(
        *(
            _together(backend, queue, common, [messages[at] for at in places])
            for common, places in by_common.items()
        )
    )
    found: dict[int, PutResult | Exception] = {}
    for places, answer in zip(by_common.values(), answers, strict=True):
        found.update(zip(places, answer, strict=True))
    return [found[at] for at in range(len(messages))]


async def _together(
    backend: Backend, queue: str, common: Common, messages: Sequence[Outgoing]
) -> list[PutResult | Exception]:
    ids = [one.message_id or str(new_uuid()) for one in messages]
    groups = [one.group for one in messages]

    async def put_many(handle: AsyncQueue) -> list[PutResult]:
        return await handle.put_many(
            [one.body for one in messages],
            headers=[one.headers for one in messages],
            group=groups if any(groups) else None,
            message_ids=ids,
            dedup_keys=[one.dedup_key for one in messages],
            **common._asdict(),
        )

    try:
        return list(await backend.on_queue(queue, put_many))
    except PutAmbiguous as error:
        return _results(ids, error)
    except Exception as error:  # noqa: BLE001 - each message has its own answer
        return [error] * len(messages)


def _results(ids: list[str], error: PutAmbiguous) -> list[PutResult | Exception]:
    """What became of each: the error says it by ids.

    Senders may choose the same id several times. It is stored if it is as often as it was put.
    """
    unstored = Counter(ids) - Counter(error.stored)
    unknown = (*error.message_ids, *(one for one in unstored if one in error.stored))
    mine = PutAmbiguous(error.message, message_ids=unknown, stored=error.stored)
    return [mine if one in unstored else PutResult(message_id=one, duplicate=False) for one in ids]
