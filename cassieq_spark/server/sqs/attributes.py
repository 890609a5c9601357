"""Queue attributes: which are settings of the queue, which are labels, and what they may be."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.rights import Right
from cassieq_spark.server.sqs.errors import SqsError, invalid
from cassieq_spark.server.sqs.names import name_of_arn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.server.sqs.call import Call

MOST_DELAY_S: Final = 900
MOST_WAIT_S: Final = 20
MOST_MESSAGE_BYTES: Final = 1_048_576

MOST_DIGITS: Final = 12
"""More digits are no number that an attribute may have."""

LABEL: Final = "sqs."
"""Labels of attributes begin with this, and so do those of tags: ``sqs.tag.<name>``."""
TAG: Final = "sqs.tag."
MODIFIED: Final = "sqs.LastModifiedTimestamp"

NUMBERS: Final[dict[str, tuple[int, int, int]]] = {
    "DelaySeconds": (0, MOST_DELAY_S, 0),
    "MaximumMessageSize": (1_024, MOST_MESSAGE_BYTES, MOST_MESSAGE_BYTES),
    "ReceiveMessageWaitTimeSeconds": (0, MOST_WAIT_S, 0),
}
"""Attributes that are kept as labels: lowest, highest, default."""

RETENTION_S: Final = (60, 1_209_600)
"""The shortest and the longest retention that SQS has."""

COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
READABLE: Final = (
    *COUNTS, "CreatedTimestamp", "DelaySeconds", "LastModifiedTimestamp", "MaximumMessageSize",
    "MessageRetentionPeriod", "QueueArn", "ReceiveMessageWaitTimeSeconds", "RedriveAllowPolicy",
    "RedrivePolicy", "VisibilityTimeout",
)  # fmt: skip
UNSET: Final = (
    "ContentBasedDeduplication", "DeduplicationScope", "FifoQueue", "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId", "Policy", "SqsManagedSseEnabled",
)  # fmt: skip
"""Attributes that SQS has and a queue here has not. They may be asked for, and not be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a queue's labels say about its messages."""

    delay_s: int
    wait_s: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a request changes: settings of the queue, and labels."""

    settings: dict[str, Any]
    labels: dict[str, str | None]


def of_queue(queue: Queue) -> Kept:
    """Read a queue's labels."""
    return Kept(
        delay_s=_number(queue, "DelaySeconds"),
        wait_s=_number(queue, "ReceiveMessageWaitTimeSeconds"),
        max_bytes=_number(queue, "MaximumMessageSize"),
    )


def changes_of(call: Call, attributes: Mapping[str, str]) -> Changes:
    """Check attributes that are to be set.

    Raises:
        SqsError: One is unknown, or has a wrong value.
        AccessDenied: The caller may not put into the dead-letter queue.
    """
    settings: dict[str, Any] = {}
    labels: dict[str, str | None] = {}
    for name, text in attributes.items():
        if name in NUMBERS:
            low, high, _ = NUMBERS[name]
            labels[LABEL + name] = str(_whole(name, text, low, high))
        elif name == "VisibilityTimeout":
            settings["visibility_timeout"] = max(0.1, _whole(name, text, 0, 43_200))
        elif name == "MessageRetentionPeriod":
            settings["retention"] = _whole(name, text, *RETENTION_S)
        elif name == "RedrivePolicy":
            settings |= _redrive_policy(call, text)
        elif name == "RedriveAllowPolicy":
            labels[LABEL + name] = _redrive_allow_policy(text)
        else:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")
    return Changes(settings=settings, labels=labels)


def shown(call: Call, queue: Queue, stats: QueueStats | None) -> dict[str, str]:
    """All attributes of a queue; counts only if they were read."""
    settings = queue.settings
    created = str(int(queue.created_at.timestamp()))
    modified = queue.labels.get(MODIFIED, "")
    found = {
        "CreatedTimestamp": created,
        "LastModifiedTimestamp": modified if modified.isascii() and modified.isdigit() else created,
        "QueueArn": call.arn(queue.name) or "",
        "VisibilityTimeout": str(int(settings.visibility_timeout_s)),
        **{name: str(_number(queue, name)) for name in NUMBERS},
    }
    if settings.retention_s is not None:
        found["MessageRetentionPeriod"] = str(int(settings.retention_s))
    if stats is not None:
        counts = (stats.visible, stats.delayed + stats.scheduled, stats.invisible)
        found |= {name: str(count) for name, count in zip(COUNTS, counts, strict=True)}
    target = settings.dead_letter_queue
    # Whoever has Cassandra may name a queue of another account there. That one is not shown.
    if settings.max_deliveries is not None and target is not None and (arn := call.arn(target)):
        found["RedrivePolicy"] = json.dumps(
            {"deadLetterTargetArn": arn, "maxReceiveCount": settings.max_deliveries}
        )
    with suppress(SqsError):
        if allowed := _redrive_allow_policy(queue.labels.get(f"{LABEL}RedriveAllowPolicy", "")):
            found["RedriveAllowPolicy"] = allowed
    return found


def wanted_of(names: list[str] | None) -> set[str]:
    """The attributes that a request asks for.

    Raises:
        SqsError: There is no such attribute.
    """
    asked = set(names or ())
    if unknown := sorted(asked - {*READABLE, *UNSET, "All"}):
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {unknown[0][:200]}.")
    return set(READABLE) if "All" in asked else asked


def differences(call: Call, queue: Queue, attributes: Mapping[str, str]) -> list[str]:
    """The attributes of a request that an existing queue has otherwise."""
    there = shown(call, queue, None)
    return [
        name
        for name, text in attributes.items()
        if _normal(call, name, text) != _normal(call, name, there.get(name, ""))
    ]


def _number(queue: Queue, name: str) -> int:
    text = queue.labels.get(LABEL + name, "")
    low, high, default = NUMBERS[name]
    try:
        return _whole(name, text, low, high)
    except SqsError:
        return default  # a label may have been set by another door


def _normal(call: Call, name: str, text: str) -> object:
    if name != "RedrivePolicy" or not text:
        return text
    try:
        found = dict(json.loads(text))
        arn = str(found.get("deadLetterTargetArn"))
        return name_of_arn(arn, call.number), int(found["maxReceiveCount"])
    except (ValueError, TypeError, KeyError, SqsError):
        return text


def _whole(name: str, text: str, low: int, high: int) -> int:
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    if not is_number or not low <= int(digits) <= high:
        raise _invalid(name, f"it must be a number from {low} to {high}")
    return int(digits)


def _redrive_policy(call: Call, text: str) -> dict[str, Any]:
    if not text:
        return {"dead_letter_queue": None, "max_deliveries": None}
    found = _json(text, "RedrivePolicy")
    arn, count = found.get("deadLetterTargetArn"), found.get("maxReceiveCount")
    if not isinstance(arn, str) or len(found) > 2:  # noqa: PLR2004 - these two
        raise _invalid("RedrivePolicy", "it has a deadLetterTargetArn and a maxReceiveCount")
    name = name_of_arn(arn, call.number)
    if name is None:
        raise invalid(
            "Value for parameter RedrivePolicy is invalid. Reason: Dead letter target owner should "
            "be same as the source."
        )
    return {
        "dead_letter_queue": call.allowed(name, Right.PUT),
        "max_deliveries": _whole("RedrivePolicy", str(count), 1, 1_000),
    }


def _redrive_allow_policy(text: str) -> str | None:
    if not text:
        return None
    found = _json(text, "RedriveAllowPolicy")
    if found.get("redrivePermission") not in ("allowAll", "denyAll", "byQueue"):
        raise _invalid(
            "RedriveAllowPolicy", "its redrivePermission is allowAll, denyAll or byQueue"
        )
    return text


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(name, "it is not JSON") from error
    if not isinstance(found, dict):
        raise _invalid(name, "it is not a JSON object")
    return found


def _invalid(name: str, why: str) -> SqsError:
    # The JSON protocol has an error of its own for this, the query protocol has not: one for both.
    return SqsError(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {why}."
    )
