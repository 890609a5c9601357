"""Create, find, change, tag, purge and delete queues."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.errors import QueueExists, QueueNotFound
from cassieq_spark.queue.find import sources_of
from cassieq_spark.server.door import in_turn, on_queue
from cassieq_spark.server.sqs import attributes
from cassieq_spark.server.sqs.call import Call, SqsError, invalid, is_text, missing, no_queue, wrong
from cassieq_spark.store import portal

MOST_RESULTS: Final = 1_000
MOST_TAGS: Final = 50
LONGEST_TAG_KEY: Final = 128
LONGEST_TAG: Final = 256
"""The limits that AWS documents, in characters."""
RESERVED_TAGS: Final = "aws:"

PURGED: Final = "sqs.purged"
"""The label with the time of the last purge, so that all gateways know it; in seconds."""
PURGE_EVERY_S: Final = 60

_NEW_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


@in_turn
async def create(call: Call) -> dict[str, Any]:
    """CreateQueue: an existing queue is returned if it has the attributes that are given."""
    _check_new_name(call.parameters["QueueName"])
    name, client = call.allowed(call.parameters["QueueName"]), call.backend.client
    given: dict[str, str] = call.get("Attributes") or {}
    settings, changed = attributes.changes_of(call, given)
    tags = _tags(call.get("tags") or {})
    _check_count(len(tags), call.parameters["QueueName"])
    labels = {key: text for key, text in {**changed, **tags}.items() if text is not None}
    try:
        queue, is_new = await client.queue(name), False
    except QueueNotFound:
        try:
            await _check_may_bury(call, settings, name)
            queue, is_new = await client.find_or_create_queue(name, labels=labels, **settings)
        except QueueNotFound as error:
            raise _no_dead_letter_queue() from error
        except QueueExists:  # somebody has just created it
            queue, is_new = await client.queue(name), False
    call.backend.keep(queue)
    if not is_new and (different := attributes.differences(call, queue, given)):
        raise SqsError(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for attribute "
            f"{', '.join(different)}",
        )
    return {"QueueUrl": call.url(name)}


@in_turn
async def get_url(call: Call) -> dict[str, Any]:
    """GetQueueUrl."""
    if "/" in call.parameters["QueueName"] or (
        call.get("QueueOwnerAWSAccountId") not in (None, call.number)
    ):
        raise no_queue()
    name = call.allowed(call.parameters["QueueName"])
    call.backend.keep(await call.backend.client.queue(name))
    return {"QueueUrl": call.url(name)}


@in_turn
async def list_queues(call: Call) -> dict[str, Any]:
    """ListQueues: by name, in pages."""
    # Asked before the list is read, and the prefix is one of names without the account.
    call.visible(())
    prefix: str = call.get("QueueNamePrefix") or ""
    visible = call.visible(one.name for one in await call.backend.client.queues())
    return _page(call, [one for one in visible if call.own(one).startswith(prefix)], "QueueUrls")


@on_queue
async def list_sources(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """ListDeadLetterSourceQueues: the queues whose dead letters go to this one."""
    found = call.visible(await portal.asked(sources_of(call.backend.store, queue.name)))
    return {"queueUrls": [], **_page(call, found, "queueUrls")}


@in_turn
async def delete(call: Call) -> dict[str, Any]:
    """DeleteQueue."""
    # Amazon's deletes a dead-letter queue that queues name, too, and its request cannot insist.
    await call.backend.client.delete_queue(call.queue, force=True)
    call.backend.forget(call.queue)
    return {}


@on_queue
async def purge(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """PurgeQueue: it is done when this returns. As with SQS, it is refused for a minute then."""
    client = call.backend.client
    now_s = await client.now_us() // 1_000_000
    last = (await client.queue(queue.name)).labels.get(PURGED, "")
    if last in map(str, range(now_s - PURGE_EVERY_S + 1, now_s + 1)):
        raise SqsError(
            "PurgeQueueInProgress",
            f"Only one PurgeQueue operation on {call.own(queue.name)} is allowed every "
            f"{PURGE_EVERY_S} seconds.",
            status=403,
        )
    await queue.purge()
    call.backend.keep(await client.label_queue(queue.name, {PURGED: str(now_s)}))
    return {}


@on_queue
async def get_attributes(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """GetQueueAttributes: counts are read only if they are asked for."""
    wanted = attributes.wanted_of(call.get("AttributeNames"))
    stats = await queue.stats() if wanted & {*attributes.COUNTS} else None
    known = attributes.shown(call, queue, stats)
    found = {key: text for key, text in known.items() if key in wanted}
    return {"Attributes": found} if found else {}


@on_queue
async def set_attributes(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """SetQueueAttributes."""
    settings, labels = attributes.changes_of(call, call.parameters["Attributes"])
    client = call.backend.client
    if settings:
        try:
            await _check_may_bury(call, settings, queue.name)
            await client.alter_queue(queue.name, **settings)
        except QueueNotFound as error:
            await client.queue(queue.name)  # raises the same if it is this queue that is gone
            raise _no_dead_letter_queue() from error
    now = {attributes.MODIFIED: str(await client.now_us() // 1_000_000)}
    call.backend.keep(await client.label_queue(queue.name, {**labels, **now}))
    return {}


@on_queue
async def tag(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """TagQueue."""
    tags: dict[str, str] = call.parameters["Tags"]
    if not tags:
        raise missing("Tags")
    return await _label(call, queue, _tags(tags))


@on_queue
async def untag(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """UntagQueue."""
    keys: list[str] = call.parameters["TagKeys"]
    if not keys or any(not 1 <= len(key) <= LONGEST_TAG_KEY for key in keys):
        raise invalid(f"Tag keys must be between 1 and {LONGEST_TAG_KEY} characters in length.")
    return await _label(call, queue, {attributes.TAG + key: None for key in keys})


@in_turn
async def list_tags(call: Call) -> dict[str, Any]:
    """ListQueueTags."""
    tags = {
        key.removeprefix(attributes.TAG): text
        for key, text in (await call.backend.client.queue(call.queue)).labels.items()
        if key.startswith(attributes.TAG)
    }
    return {"Tags": tags} if tags else {}


async def no_permissions(call: Call) -> NoReturn:
    """AddPermission, RemovePermission: rights belong to keys here, not to queues."""
    call.principal.require_admin()
    raise SqsError(
        "UnsupportedOperation",
        f"{call.operation.name} is not supported: queues have no policies here.",
    )


async def _check_may_bury(call: Call, settings: dict[str, Any], source: str) -> None:
    """Ask the dead-letter queue that new settings name, if they name one, whether it may be.

    Raises:
        QueueNotFound: It does not exist.
        SqsError: It does not allow it.
    """
    target = settings.get("dead_letter_queue")
    if target is not None:
        attributes.check_may_bury(call, await call.backend.client.queue(target), source)


async def _label(call: Call, queue: AsyncQueue, labels: dict[str, str | None]) -> dict[str, Any]:
    there = {key for key in queue.labels if key.startswith(attributes.TAG)}
    there |= {key for key, text in labels.items() if text is not None}
    _check_count(len(there), queue.name.rpartition("/")[2])
    call.backend.keep(await call.backend.client.label_queue(queue.name, labels))
    return {}


def _tags(given: dict[str, str]) -> dict[str, str | None]:
    for key, text in given.items():
        if not 1 <= len(key) <= LONGEST_TAG_KEY or len(text) > LONGEST_TAG:
            raise invalid(
                f"A tag has a key of 1 to {LONGEST_TAG_KEY} characters and a value of up to "
                f"{LONGEST_TAG}."
            )
        if key.lower().startswith(RESERVED_TAGS):
            raise invalid(f"Tag keys that begin with {RESERVED_TAGS!r} are reserved: {key!r}.")
        if not is_text(key + text):
            raise invalid(f"Tag {key!r} has a character that SQS does not allow.")
    return {attributes.TAG + key: text for key, text in given.items()}


def _check_count(tags: int, queue: str) -> None:
    if tags > MOST_TAGS:
        raise invalid(f"Too many tags added for queue {queue}.")


def _check_new_name(name: str) -> None:
    if name.endswith(".fifo"):
        raise invalid(
            f"The queue name {name[:100]!r} ends in .fifo, but there are no FIFO queues here."
        )
    if not _NEW_NAME.fullmatch(name):
        raise invalid(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


def _no_dead_letter_queue() -> SqsError:
    return wrong("RedrivePolicy", "Dead letter target does not exist.")


def _page(call: Call, names: Iterable[str], key: str) -> dict[str, Any]:
    """Return a page of queue URLs. The token is the last name of the page before, unqualified."""
    size: int | None = call.get("MaxResults")
    if size is not None and not 1 <= size <= MOST_RESULTS:
        raise wrong("MaxResults", f"Must be between 1 and {MOST_RESULTS}.", size)
    after = _name_of(call.get("NextToken"))
    left = [name for name in names if call.own(name) > after]
    page = left[: size or MOST_RESULTS]
    found: dict[str, Any] = {key: [call.url(name) for name in page]} if page else {}
    if size is not None and len(left) > len(page):
        found["NextToken"] = base64.urlsafe_b64encode(call.own(page[-1]).encode()).decode("ascii")
    return found


def _name_of(token: str | None) -> str:
    if not token:
        return ""
    try:
        return base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid("Invalid or expired next token.") from error
