"""Create, find, change, tag, purge and delete queues."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cassieq_spark.errors import QueueExists, QueueNotFound
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.find import sources_of
from cassieq_spark.server.sqs import attributes
from cassieq_spark.server.sqs.call import Action, name_of_url
from cassieq_spark.server.sqs.errors import SqsError, invalid, is_text, missing, no_queue
from cassieq_spark.server.sqs.parameters import Kind, parameters
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.server.sqs.call import Call

MOST_RESULTS: Final = 1_000
MOST_TAGS: Final = 50
LONGEST_TAG_KEY: Final = 128
LONGEST_TAG: Final = 256
"""As AWS documents them, in characters."""
RESERVED_TAGS: Final = "aws:"

PAGE: Final = {"NextToken": Kind.TEXT, "MaxResults": Kind.WHOLE}

PURGED: Final = "sqs.purged"
"""The label with the time of the last purge, so that all gateways know it; in seconds."""
PURGE_EVERY_S: Final = 60

_NEW_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


@Action("CreateQueue", Right.CREATE, parameters("QueueName", Attributes=Kind.MAP, tags=Kind.MAP))
async def create(call: Call) -> dict[str, Any]:
    """CreateQueue: an existing queue is returned if it has the attributes that are given."""
    name: str = call.parameters["QueueName"]
    _check_new_name(name)
    name = call.allowed(name)
    given: dict[str, str] = call.get("Attributes") or {}
    changes = attributes.changes_of(call, given)
    tags = _tags(call.get("tags") or {})
    _check_count(len(tags), call.parameters["QueueName"])
    labels = {key: text for key, text in {**changes.labels, **tags}.items() if text is not None}

    async def work() -> None:
        client = call.backend.client
        try:
            queue, is_new = await client.queue(name), False
        except QueueNotFound:
            try:
                await _check_may_bury(call, changes, name)
                queue, is_new = await client.find_or_create_queue(
                    name, labels=labels, **changes.settings
                )
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

    await call.backend.run(work)
    return {"QueueUrl": call.url(name)}


@Action("GetQueueUrl", Right.INFO, parameters("QueueName", QueueOwnerAWSAccountId=Kind.TEXT))
async def get_url(call: Call) -> dict[str, Any]:
    """GetQueueUrl."""
    if "/" in call.parameters["QueueName"] or (
        call.get("QueueOwnerAWSAccountId") not in (None, call.number)
    ):
        raise no_queue()
    name = call.allowed(call.parameters["QueueName"])

    async def work() -> None:
        call.backend.keep(await call.backend.client.queue(name))

    await call.backend.run(work)
    return {"QueueUrl": call.url(name)}


@Action("ListQueues", Right.INFO, parameters(QueueNamePrefix=Kind.TEXT, **PAGE))
async def list_queues(call: Call) -> dict[str, Any]:
    """ListQueues: by name, in pages."""
    # Asked before the list is read, and the prefix is one of names without the account.
    call.visible(())
    prefix: str = call.get("QueueNamePrefix") or ""

    async def work() -> list[str]:
        visible = call.visible(one.name for one in await call.backend.client.queues())
        return [name for name in visible if call.own(name).startswith(prefix)]

    return _page(call, await call.backend.run(work), "QueueUrls")


@Action("ListDeadLetterSourceQueues", Right.INFO, parameters("QueueUrl", **PAGE))
async def list_sources(call: Call) -> dict[str, Any]:
    """ListDeadLetterSourceQueues: the queues whose dead letters go to this one."""
    name = call.queue()

    async def work(queue: AsyncQueue) -> list[str]:
        return call.visible(await portal.asked(sources_of(call.backend.store, queue.name)))

    found = await call.backend.on_queue(name, work)
    return {"queueUrls": [], **_page(call, found, "queueUrls")}


@Action("DeleteQueue", Right.DELETE, parameters("QueueUrl"))
async def delete(call: Call) -> dict[str, Any]:
    """DeleteQueue."""
    name = call.queue()
    # Amazon's deletes a dead-letter queue that queues name, too, and its request cannot insist.
    await call.backend.run(lambda: call.backend.client.delete_queue(name, force=True))
    call.backend.forget(name)
    return {}


@Action("PurgeQueue", Right.PURGE, parameters("QueueUrl"))
async def purge(call: Call) -> dict[str, Any]:
    """PurgeQueue: it is done when this returns. As with SQS, it is refused for a minute then."""

    async def work(queue: AsyncQueue) -> None:
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

    await call.backend.on_queue(call.queue(), work)
    return {}


@Action("GetQueueAttributes", Right.INFO, parameters("QueueUrl", AttributeNames=Kind.TEXTS))
async def get_attributes(call: Call) -> dict[str, Any]:
    """GetQueueAttributes: counts are read only if they are asked for."""
    name = call.queue()
    wanted = attributes.wanted_of(call.get("AttributeNames"))

    async def work(queue: AsyncQueue) -> dict[str, str]:
        stats = await queue.stats() if wanted & {*attributes.COUNTS} else None
        return attributes.shown(call, queue, stats)

    known = await call.backend.on_queue(name, work)
    found = {key: text for key, text in known.items() if key in wanted}
    return {"Attributes": found} if found else {}


@Action(
    "SetQueueAttributes", Right.CREATE, parameters("QueueUrl", "Attributes", Attributes=Kind.MAP)
)
async def set_attributes(call: Call) -> dict[str, Any]:
    """SetQueueAttributes."""
    name = call.queue()
    changes = attributes.changes_of(call, call.parameters["Attributes"])

    async def work(queue: AsyncQueue) -> None:
        client = call.backend.client
        if changes.settings:
            try:
                await _check_may_bury(call, changes, queue.name)
                await client.alter_queue(queue.name, **changes.settings)
            except QueueExists as error:
                raise invalid(error.message) from error
            except QueueNotFound as error:
                await client.queue(queue.name)  # raises the same if it is this queue that is gone
                raise _no_dead_letter_queue() from error
        now = {attributes.MODIFIED: str(await client.now_us() // 1_000_000)}
        call.backend.keep(await client.label_queue(queue.name, {**changes.labels, **now}))

    await call.backend.on_queue(name, work)
    return {}


@Action("TagQueue", Right.CREATE, parameters("QueueUrl", "Tags", Tags=Kind.MAP))
async def tag(call: Call) -> dict[str, Any]:
    """TagQueue."""
    tags: dict[str, str] = call.parameters["Tags"]
    if not tags:
        raise missing("Tags")
    await _label(call, _tags(tags))
    return {}


@Action("UntagQueue", Right.CREATE, parameters("QueueUrl", "TagKeys", TagKeys=Kind.TEXTS))
async def untag(call: Call) -> dict[str, Any]:
    """UntagQueue."""
    keys: list[str] = call.parameters["TagKeys"]
    if not keys or any(not 1 <= len(key) <= LONGEST_TAG_KEY for key in keys):
        raise invalid(f"Tag keys must be between 1 and {LONGEST_TAG_KEY} characters in length.")
    await _label(call, {attributes.TAG + key: None for key in keys})
    return {}


@Action("ListQueueTags", Right.INFO, parameters("QueueUrl"))
async def list_tags(call: Call) -> dict[str, Any]:
    """ListQueueTags."""

    async def work(queue: AsyncQueue) -> dict[str, str]:
        found = await call.backend.client.queue(queue.name)
        return {
            key.removeprefix(attributes.TAG): text
            for key, text in found.labels.items()
            if key.startswith(attributes.TAG)
        }

    tags = await call.backend.on_queue(call.queue(), work)
    return {"Tags": tags} if tags else {}


async def _no_permissions(call: Call) -> NoReturn:
    # Rights belong to keys here, not to queues.
    name_of_url(call.parameters["QueueUrl"], call.number)
    call.principal.require_admin()
    raise SqsError(
        "UnsupportedOperation",
        f"{call.action.name} is not supported: queues have no policies here.",
    )


add_permission = Action(
    "AddPermission",
    Right.ADMIN,
    parameters(
        "QueueUrl", "Label", "AWSAccountIds", "Actions",
        AWSAccountIds=Kind.TEXTS, Actions=Kind.TEXTS,
    ),
    _no_permissions,
)  # fmt: skip
remove_permission = Action(
    "RemovePermission", Right.ADMIN, parameters("QueueUrl", "Label"), _no_permissions
)


async def _check_may_bury(call: Call, changes: attributes.Changes, source: str) -> None:
    """Ask the dead-letter queue that the changes name, if they name one, whether it may be.

    Raises:
        QueueNotFound: It does not exist.
        SqsError: It does not allow it.
    """
    target = changes.settings.get("dead_letter_queue")
    if target is not None:
        attributes.check_may_bury(call, await call.backend.client.queue(target), source)


async def _label(call: Call, labels: dict[str, str | None]) -> None:
    async def work(queue: AsyncQueue) -> None:
        there = {key for key in queue.labels if key.startswith(attributes.TAG)}
        there |= {key for key, text in labels.items() if text is not None}
        _check_count(len(there), queue.name.rpartition("/")[2])
        call.backend.keep(await call.backend.client.label_queue(queue.name, labels))

    await call.backend.on_queue(call.queue(), work)


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
    return invalid(
        "Value for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist."
    )


def _page(call: Call, names: Iterable[str], key: str) -> dict[str, Any]:
    """One page of queue URLs. The token is the last name of the page before, without account."""
    size: int | None = call.get("MaxResults")
    if size is not None and not 1 <= size <= MOST_RESULTS:
        raise invalid(
            f"Value {size} for parameter MaxResults is invalid. Reason: Must be between 1 and "
            f"{MOST_RESULTS}."
        )
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
