"""Group puts: while one put of a queue is under way, others gather, and the next takes them all.

Messages that are put together share their chunk and its round trips, as with `Queue.put_many`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cassieq_spark import tracing
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import PutAmbiguous, UsageError
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.server.groups import Groups
from cassieq_spark.store.call import asked_now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextvars import Context
    from datetime import datetime

    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.server.backend import Backend

MOST_MESSAGES: Final = 2_000
MOST_BYTES: Final = 8_388_608
"""The most of one put: its messages are in memory, and all its senders wait for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to put, with the arguments of `Queue.put`.

    Attributes:
        message_id: None: a new one.
    """

    body: bytes
    headers: Mapping[str, str]
    delay_s: float = 0
    due_at: datetime | None = None
    ttl_s: float | None = None
    priority: int = 0
    key: str | None = None
    tag: str | None = None
    message_id: str | None = None
    dedup_key: str | None = None
    group: str | None = None

    @property
    def is_visible(self) -> bool:
        """Whether somebody who waits may get it now; a time in the past is seen by a later look."""
        return not self.delay_s and self.due_at is None

    def with_context(self) -> Outgoing:
        """The message with the context of the current span, if there is one."""
        headers = tracing.carried(self.headers)
        return self if headers is self.headers else replace(self, headers=headers)

    @property
    def common(self) -> _Common:
        """What it must have in common with messages that it is put together with."""
        return _Common(self.delay_s, self.due_at, self.ttl_s, self.priority, self.key, self.tag)


class _Common(NamedTuple):
    delay_s: float
    due_at: datetime | None
    ttl_s: float | None
    priority: int
    key: str | None
    tag: str | None


_Key = tuple[str, _Common]
"""The queue and what messages have in common."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Asked:
    """The messages of one request, and its answer: a result or an error for each.

    Attributes:
        context: What a put sees of the request: the first one's, and it is linked to all.
    """

    messages: Sequence[Outgoing]
    ids: list[str]
    answer: asyncio.Future[list[PutResult | Exception]]
    context: Context

    @property
    def size_bytes(self) -> int:
        return sum(len(one.body) for one in self.messages)


class Sending:
    """Puts messages for all requests of a process. For one event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._groups: Groups[_Key, _Asked] = Groups(_together, self._put)

    async def put(self, queue: str, messages: Sequence[Outgoing]) -> list[PutResult | Exception]:
        """Put messages; return for each its result, or the error that kept it out.

        Messages of one request that differ in anything that `Outgoing.common` has go side by side.
        """
        messages = [one.with_context() for one in messages]
        by_common: dict[_Common, list[int]] = {}
        for at, message in enumerate(messages):
            by_common.setdefault(message.common, []).append(at)
        if len(by_common) == 1:
            return await self._ask((queue, next(iter(by_common))), messages)
        answers = await asyncio.gather(
            *(
                self._ask((queue, common), [messages[at] for at in places])
                for common, places in by_common.items()
            )
        )
        found: dict[int, PutResult | Exception] = {}
        for places, answer in zip(by_common.values(), answers, strict=True):
            found.update(zip(places, answer, strict=True))
        return [found[at] for at in range(len(messages))]

    async def close(self, within_s: float) -> None:
        """Begin no further put, and wait so long for those under way."""
        await self._groups.close(within_s)

    async def _ask(self, key: _Key, messages: Sequence[Outgoing]) -> list[PutResult | Exception]:
        asked = _Asked(
            messages=messages,
            ids=[one.message_id or str(new_uuid()) for one in messages],
            answer=asyncio.get_running_loop().create_future(),
            context=asked_now(),
        )
        self._groups.add(key, asked)
        # A client that goes away does not take back what others' messages are put with.
        return await asyncio.shield(asked.answer)

    async def _put(self, key: _Key, together: list[_Asked]) -> None:
        found = _for_each(await self._results(key, together), together)
        if isinstance(found, UsageError) and len(together) > 1:
            # The mistake is in one of the requests. Nothing is stored yet, so each is put alone.
            for one in together:
                await self._put(key, [one])
            return
        at = 0
        for asked in together:
            if not asked.answer.done():
                asked.answer.set_result(_answers(asked.ids, found, at))
            at += len(asked.ids)

    async def _results(self, key: _Key, together: list[_Asked]) -> list[PutResult] | Exception:
        queue, common = key
        messages = [one for asked in together for one in asked.messages]
        ids = [one for asked in together for one in asked.ids]
        has_groups = any(one.group is not None for one in messages)

        def put_many(handle: Queue) -> list[PutResult]:
            return handle.put_many(
                [one.body for one in messages],
                priority=common.priority,
                key=common.key,
                delay=common.delay_s,
                due_at=common.due_at,
                ttl=common.ttl_s,
                tag=common.tag,
                headers=[one.headers for one in messages],
                group=[one.group for one in messages] if has_groups else None,
                message_ids=ids,
                dedup_keys=[one.dedup_key for one in messages],
            )

        try:
            return await self._backend.on_queue(queue, put_many, together[0].context)
        except Exception as error:  # noqa: BLE001 - it is raised where the requests wait
            return error


def _together(waiting: list[_Asked]) -> list[_Asked]:
    """Take what one put may have, in the order in which it came."""
    found = [waiting.pop(0)]
    count, size = len(found[0].ids), found[0].size_bytes
    while waiting:
        count, size = count + len(waiting[0].ids), size + waiting[0].size_bytes
        if count > MOST_MESSAGES or size > MOST_BYTES:
            break
        found.append(waiting.pop(0))
    return found


def _for_each(
    found: list[PutResult] | Exception, together: list[_Asked]
) -> list[PutResult] | Exception:
    """An error that calls only those ids stored which it names as often as they were put.

    Several messages may have the same id, if their senders have chosen it.
    """
    if not isinstance(found, PutAmbiguous):
        return found
    put = Counter(one for asked in together for one in asked.ids)
    stored = Counter(found.stored)
    unknown = {one for one, times in put.items() if 0 < stored[one] < times}
    return PutAmbiguous(
        found.message,
        message_ids=(*found.message_ids, *sorted(unknown)),
        stored=tuple(one for one in found.stored if one not in unknown),
    )


def _answers(
    ids: list[str], found: list[PutResult] | Exception, at: int
) -> list[PutResult | Exception]:
    """The answers for the messages of one request, which are at this place of a put."""
    if isinstance(found, list):
        return list(found[at : at + len(ids)])
    failure = found
    if not isinstance(failure, PutAmbiguous):
        return [failure for _ in ids]
    own = set(ids)
    # It names the messages of all requests that were put together.
    mine = PutAmbiguous(
        failure.message,
        message_ids=tuple(one for one in failure.message_ids if one in own),
        stored=tuple(one for one in failure.stored if one in own),
    )
    return [
        PutResult(message_id=one, duplicate=False) if one in mine.stored else mine for one in ids
    ]
