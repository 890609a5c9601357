"""List the parameters of each action, and check what a request gives for them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.rights import Right
from cassieq_spark.server.sqs.errors import SqsError, empty_batch, invalid, missing

if TYPE_CHECKING:
    from collections.abc import Mapping


FAILURE: Final = "failure"
"""The error of an entry of a batch whose parameters are wrong, among them. It fails alone."""


class Kind(Enum):
    """The form of a parameter."""

    TEXT = "text"
    WHOLE = "whole number"
    TEXTS = "list of texts"
    MAP = "map of text to text"
    TYPED = "map of message attributes"
    ENTRIES = "list of entries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of an action, or of one entry of a batch."""

    kinds: Mapping[str, Kind]
    required: tuple[str, ...] = ()
    entries: Parameters | None = None


def _of(*required: str, **kinds: Kind) -> Parameters:
    """Required ones are texts unless a keyword says otherwise."""
    return Parameters(kinds={**dict.fromkeys(required, Kind.TEXT), **kinds}, required=required)


_SEND: Final[dict[str, Kind]] = {
    "DelaySeconds": Kind.WHOLE,
    "MessageAttributes": Kind.TYPED,
    "MessageSystemAttributes": Kind.TYPED,
    "MessageDeduplicationId": Kind.TEXT,
    "MessageGroupId": Kind.TEXT,
}
_PAGE: Final = {"NextToken": Kind.TEXT, "MaxResults": Kind.WHOLE}


def _batch(entry: Parameters) -> Parameters:
    return replace(_of("QueueUrl", "Entries", Entries=Kind.ENTRIES), entries=entry)


ACTIONS: Final[dict[str, Parameters]] = {
    "AddPermission": _of(
        "QueueUrl", "Label", "AWSAccountIds", "Actions",
        AWSAccountIds=Kind.TEXTS, Actions=Kind.TEXTS,
    ),
    "CancelMessageMoveTask": _of("TaskHandle"),
    "ChangeMessageVisibility": _of(
        "QueueUrl", "ReceiptHandle", "VisibilityTimeout", VisibilityTimeout=Kind.WHOLE
    ),
    "ChangeMessageVisibilityBatch": _batch(
        _of("Id", "ReceiptHandle", VisibilityTimeout=Kind.WHOLE)
    ),
    "CreateQueue": _of("QueueName", Attributes=Kind.MAP, tags=Kind.MAP),
    "DeleteMessage": _of("QueueUrl", "ReceiptHandle"),
    "DeleteMessageBatch": _batch(_of("Id", "ReceiptHandle")),
    "DeleteQueue": _of("QueueUrl"),
    "GetQueueAttributes": _of("QueueUrl", AttributeNames=Kind.TEXTS),
    "GetQueueUrl": _of("QueueName", QueueOwnerAWSAccountId=Kind.TEXT),
    "ListDeadLetterSourceQueues": _of("QueueUrl", **_PAGE),
    "ListMessageMoveTasks": _of("SourceArn", MaxResults=Kind.WHOLE),
    "ListQueueTags": _of("QueueUrl"),
    "ListQueues": _of(QueueNamePrefix=Kind.TEXT, **_PAGE),
    "PurgeQueue": _of("QueueUrl"),
    "ReceiveMessage": _of(
        "QueueUrl",
        AttributeNames=Kind.TEXTS,
        MessageSystemAttributeNames=Kind.TEXTS,
        MessageAttributeNames=Kind.TEXTS,
        MaxNumberOfMessages=Kind.WHOLE,
        VisibilityTimeout=Kind.WHOLE,
        WaitTimeSeconds=Kind.WHOLE,
        ReceiveRequestAttemptId=Kind.TEXT,
    ),
    "RemovePermission": _of("QueueUrl", "Label"),
    "SendMessage": _of("QueueUrl", "MessageBody", **_SEND),
    "SendMessageBatch": _batch(_of("Id", "MessageBody", **_SEND)),
    "SetQueueAttributes": _of("QueueUrl", "Attributes", Attributes=Kind.MAP),
    "StartMessageMoveTask": _of(
        "SourceArn", DestinationArn=Kind.TEXT, MaxNumberOfMessagesPerSecond=Kind.WHOLE
    ),
    "TagQueue": _of("QueueUrl", "Tags", Tags=Kind.MAP),
    "UntagQueue": _of("QueueUrl", "TagKeys", TagKeys=Kind.TEXTS),
}  # fmt: skip


RIGHTS: Final[dict[str, Right]] = {
    "AddPermission": Right.ADMIN,
    "CancelMessageMoveTask": Right.REDRIVE,
    "ChangeMessageVisibility": Right.ACK,
    "ChangeMessageVisibilityBatch": Right.ACK,
    "CreateQueue": Right.CREATE,
    "DeleteMessage": Right.ACK,
    "DeleteMessageBatch": Right.ACK,
    "DeleteQueue": Right.DELETE,
    "GetQueueAttributes": Right.INFO,
    "GetQueueUrl": Right.INFO,
    "ListDeadLetterSourceQueues": Right.INFO,
    "ListMessageMoveTasks": Right.INFO,
    "ListQueueTags": Right.INFO,
    "ListQueues": Right.INFO,
    "PurgeQueue": Right.PURGE,
    "ReceiveMessage": Right.READ,
    "RemovePermission": Right.ADMIN,
    "SendMessage": Right.PUT,
    "SendMessageBatch": Right.PUT,
    "SetQueueAttributes": Right.CREATE,
    "StartMessageMoveTask": Right.REDRIVE,
    "TagQueue": Right.CREATE,
    "UntagQueue": Right.CREATE,
}
"""The right that each action asks for, on the queue that it names. To name a dead-letter queue or
the destination of a task, a caller needs ``put`` on that queue, too: messages go there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A message attribute as it is sent: its type, and its text or bytes."""

    data_type: str
    text: str | None = None
    raw: bytes | None = None


def checked(wanted: Parameters, given: Mapping[str, Any], *, action: str = "") -> dict[str, Any]:
    """Check and convert what a request gives; unknown parameters are left out, as AWS does.

    Args:
        action: Whose parameters they are; entries of a batch have none.

    Raises:
        SqsError: One is missing, or has another form.
    """
    found: dict[str, Any] = {}
    for name, kind in wanted.kinds.items():
        value = given.get(name)
        if type(value) is str and kind is Kind.TEXT:  # as most are
            found[name] = value
        elif value is not None:
            found[name] = _value(name, kind, value, wanted.entries)
        elif name in wanted.required:
            if kind is Kind.ENTRIES:
                raise empty_batch(action)
            raise missing(name)
    return found


def _value(name: str, kind: Kind, value: object, entries: Parameters | None) -> object:
    match kind, value:
        case (Kind.TEXT, str()):
            return value
        case (Kind.WHOLE, int()) if not isinstance(value, bool):
            return value
        case (Kind.TEXTS, list()) if all(isinstance(one, str) for one in value):
            return value
        case (Kind.MAP, dict()) if all(isinstance(one, str) for one in value.values()):
            return value
        case (Kind.TYPED, dict()):
            return {key: _typed(name, key, one) for key, one in value.items()}
        case (Kind.ENTRIES, list()) if all(isinstance(one, dict) for one in value) and entries:
            return [_entry(entries, one) for one in value]
        case _:
            raise SqsError("SerializationException", f"{name} must be a {kind.value}.")


def _entry(wanted: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one entry of a batch; or its id, and what is wrong with it."""
    try:
        return checked(wanted, given)
    except SqsError as error:
        known = checked(_of("Id"), given)  # without one, nobody could be told
        is_form = error.name == "SerializationException"  # which is of whole requests
        return {**known, FAILURE: invalid(error.message) if is_form else error}


def _typed(name: str, key: str, value: object) -> Typed:
    if not isinstance(value, dict):
        raise SqsError("SerializationException", f"{name} must be a {Kind.TYPED.value}.")
    data_type, text, raw = (
        value.get("DataType"), value.get("StringValue"), value.get("BinaryValue")
    )  # fmt: skip
    if not all(one is None or isinstance(one, str) for one in (data_type, text, raw)):
        raise SqsError("SerializationException", f"{name} must be a {Kind.TYPED.value}.")
    try:
        decoded = None if raw is None else base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SqsError(
            "SerializationException", f"The BinaryValue of attribute {key!r} is not base64."
        ) from error
    return Typed(data_type=data_type or "", text=text, raw=decoded)
