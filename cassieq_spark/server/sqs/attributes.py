"""Queue attributes: which are settings of the queue, which are labels, and what they may be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.inspect.stats import QueueStats
from cassieq_spark.server.sqs.call import Call, SqsError, is_text, name_of_arn, wrong
from cassieq_spark.server.sqs.protocol import FIELDS, TooManyValues, from_json

MOST_DELAY_S: Final = 900
MOST_WAIT_S: Final = 20
MOST_MESSAGE_BYTES: Final = 1_048_576

MOST_DIGITS: Final = 12
"""More digits are no number that an attribute may have."""

LABEL: Final = "sqs."
"""Labels of attributes begin with this, and so do those of tags: ``sqs.tag.<name>``."""
TAG: Final = "sqs.tag."
MODIFIED: Final = "sqs.LastModifiedTimestamp"

DELAY: Final = "DelaySeconds"
SIZE: Final = "MaximumMessageSize"
WAIT: Final = "ReceiveMessageWaitTimeSeconds"
REUSE: Final = "KmsDataKeyReusePeriodSeconds"
REDRIVE: Final = "RedrivePolicy"
ALLOW: Final = "RedriveAllowPolicy"
SSE: Final = "SqsManagedSseEnabled"
KMS: Final = "KmsMasterKeyId"

NUMBERS: Final = {DELAY: 0, SIZE: MOST_MESSAGE_BYTES, WAIT: 0}
"""Numbers that are kept as labels, with their defaults."""

RANGES: Final = {
    DELAY: (0, MOST_DELAY_S),
    SIZE: (1_024, MOST_MESSAGE_BYTES),
    WAIT: (0, MOST_WAIT_S),
    REUSE: (60, 86_400),
    "VisibilityTimeout": (0, 43_200),
    "MessageRetentionPeriod": (60, 1_209_600),
    REDRIVE: (1, 1_000),
}
"""The lowest and the highest number that an attribute may have."""

DEFAULT_RETENTION_S: Final = 345_600
"""The retention that is shown for a queue that has none: the default of SQS. Nothing is deleted."""

DEFAULT_REUSE_S: Final = 300
LONGEST_KEY_ID: Final = 2_048
"""The longest ``KmsMasterKeyId`` that KMS allows."""

WITHOUT_EFFECT: Final = (REUSE, KMS, "Policy", SSE)
"""Attributes that are kept as labels and given back, and change nothing: Terraform and others set
them, and compare what they read with what they have set."""
KEPT: Final = (*NUMBERS, ALLOW, *WITHOUT_EFFECT)

MOST_SOURCES: Final = 10
"""The most queues that a ``RedriveAllowPolicy`` names."""

COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
READABLE: Final = (
    *COUNTS, *RANGES, ALLOW, KMS, "Policy", SSE, "CreatedTimestamp", "LastModifiedTimestamp",
    "QueueArn",
)  # fmt: skip
UNSET: Final = (
    "ContentBasedDeduplication", "DeduplicationScope", "FifoQueue", "FifoThroughputLimit",
)  # fmt: skip
"""Attributes of FIFO queues. They may be asked for, and not be set."""

_logger = get_logger("server")


def number(queue: AsyncQueue, name: str) -> int:
    """Return a queue's value of one of `NUMBERS`."""
    try:
        return _whole(name, queue.labels.get(LABEL + name, ""))
    except SqsError:
        return NUMBERS[name]


def changes_of(
    call: Call, attributes: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Check attributes that are to be set; return the settings and the labels that they change.

    Raises:
        SqsError: One is unknown, or has a wrong value.
        AccessDenied: The caller may not put into the dead-letter queue.
    """
    settings: dict[str, Any] = {}
    labels: dict[str, str | None] = {}
    if attributes.get(KMS) and attributes.get(SSE, "").lower() == "true":
        raise SqsError(  # in AWS's words
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. You can either "
            "enable KMS SSE or SQS SSE.",
        )
    for name, text in attributes.items():
        if name == "VisibilityTimeout":
            settings["visibility_timeout"] = max(0.1, _whole(name, text))
        elif name == "MessageRetentionPeriod":
            settings["retention"] = _whole(name, text)
        elif name == REDRIVE:
            settings |= _redrive_policy(call, text)
        elif name in KEPT:
            labels |= {LABEL + key: kept for key, kept in _kept(call, name, text).items()}
            if name in WITHOUT_EFFECT and text and text.lower() != "false":
                _say_once(name)
        else:
            raise _unknown(name)
    return settings, labels


def shown(call: Call, queue: AsyncQueue, stats: QueueStats | None) -> dict[str, str]:
    """All attributes of a queue; counts only if they were read."""
    settings = queue.settings
    created = str(int(queue.created_at.timestamp()))
    modified = queue.labels.get(MODIFIED, "")
    found = {
        "CreatedTimestamp": created,
        "LastModifiedTimestamp": modified if modified.isascii() and modified.isdigit() else created,
        "QueueArn": call.arn(queue.name) or "",
        "VisibilityTimeout": str(int(settings.visibility_timeout_s)),
        "MessageRetentionPeriod": str(int(settings.retention_s or DEFAULT_RETENTION_S)),
        **{name: str(number(queue, name)) for name in NUMBERS},
        # SQS encrypts unless it is told not to; a gateway that says so would promise too much.
        SSE: "false",
        **_labels(call, queue, (ALLOW, *WITHOUT_EFFECT)),
    }
    if KMS in found:
        found.setdefault(REUSE, str(DEFAULT_REUSE_S))
    else:
        found.pop(REUSE, None)  # as AWS has it
    if stats is not None:
        counts = (stats.visible, stats.delayed + stats.scheduled, stats.in_flight)
        found |= {name: str(count) for name, count in zip(COUNTS, counts, strict=True)}
    target = settings.dead_letter_queue
    # Whoever has Cassandra may name a queue of another account there. That one is not shown.
    if settings.max_deliveries is not None and target is not None and (arn := call.arn(target)):
        found[REDRIVE] = json.dumps(
            {"deadLetterTargetArn": arn, "maxReceiveCount": settings.max_deliveries}
        )
    return found


def check_may_bury(call: Call, target: AsyncQueue, source: str) -> None:
    """Return if the queue `target` lets `source` name it as its dead-letter queue.

    Raises:
        SqsError: Its ``RedriveAllowPolicy`` does not.
    """
    policy = json.loads(_labels(call, target, [ALLOW]).get(ALLOW, "{}"))
    permission, named = policy.get("redrivePermission"), policy.get("sourceQueueArns", [])
    is_named = call.own(source) in {_name_in(call, one) for one in named}
    if permission == "denyAll" or (permission == "byQueue" and not is_named):
        raise wrong(
            REDRIVE,
            f"The RedriveAllowPolicy of the dead-letter queue {call.own(target.name)} does not "
            f"allow queue {call.own(source)} to use it.",
        )


def wanted_of(names: list[str] | None) -> set[str]:
    """The attributes that a request asks for.

    Raises:
        SqsError: There is no such attribute.
    """
    asked = set(names or ())
    check_known(asked)
    return set(READABLE) if "All" in asked else asked


def check_known(names: Iterable[str]) -> None:
    """Return if a queue has all these attributes.

    Raises:
        SqsError: One of them is not an attribute of queues.
    """
    if unknown := sorted(set(names) - {*READABLE, *UNSET, "All"}):
        raise _unknown(unknown[0])


def differences(call: Call, queue: AsyncQueue, attributes: Mapping[str, str]) -> list[str]:
    """The attributes of a request that an existing queue has otherwise."""
    there = shown(call, queue, None)
    there |= {REUSE: str(DEFAULT_REUSE_S), **_labels(call, queue, [REUSE])}
    attributes = {**attributes, **({SSE: sse.lower()} if (sse := attributes.get(SSE)) else {})}
    is_open = not _labels(call, queue, (SSE, KMS))  # true with AWS, false here
    return [
        name
        for name, text in attributes.items()
        if not (name == SSE and is_open)
        and _normal(call, name, text) != _normal(call, name, there.get(name, ""))
    ]


def _labels(call: Call, queue: AsyncQueue, names: Iterable[str]) -> dict[str, str]:
    """The attributes among these that a queue has as labels; another door may set any label."""
    found = {}
    for name in names:
        with suppress(SqsError):
            if text := _kept(call, name, queue.labels.get(LABEL + name, "")).get(name):
                found[name] = text
    return found


def _normal(call: Call, name: str, text: str) -> object:
    """The value of an attribute, in whatever way it is written."""
    match name, _parsed(text):
        case "RedrivePolicy", {"deadLetterTargetArn": arn, "maxReceiveCount": count}:
            return _name_in(call, arn), str(count)
        case "RedriveAllowPolicy", {"redrivePermission": "allowAll"}:
            return ""  # the default
        case "RedriveAllowPolicy", {"redrivePermission": "byQueue", "sourceQueueArns": [*named]}:
            return {_name_in(call, one) for one in named}
        case (("RedriveAllowPolicy" | "Policy"), {**policy}):
            return policy
        case _:
            return text.strip().lstrip("0") if text.strip().isdigit() else text


def _name_in(call: Call, arn: object) -> str | None:
    """The name of a queue of the caller's account; None: the ARN is of none."""
    try:
        return name_of_arn(str(arn), call.number)
    except SqsError:
        return None


def _parsed(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:
        return None


def _kept(call: Call, name: str, text: str) -> dict[str, str | None]:
    """The labels that an attribute changes, by their names without the prefix.

    Raises:
        SqsError: It cannot have this value.
    """
    if not is_text(text):
        raise _invalid(name, "it has a character that SQS does not allow")
    if name in NUMBERS or (name == REUSE and text):
        return {name: str(_whole(name, text))}
    if name == SSE:
        return _encrypted(text.lower())
    if not text:
        return {name: None}
    if name == KMS and len(text) > LONGEST_KEY_ID:
        raise _invalid(name, f"it must have at most {LONGEST_KEY_ID} characters")
    if name == "Policy":
        _json(text, name)
    if name == ALLOW:
        _check_redrive_allow_policy(call, text)
    return {name: text, **({SSE: "false"} if name == KMS else {})}


def _encrypted(text: str) -> dict[str, str | None]:
    if text not in ("true", "false"):
        raise _invalid(SSE, "it must be true or false")
    return {SSE: text, **({KMS: None} if text == "true" else {})}  # there is one kind at a time


@cache
def _say_once(attribute: str) -> None:
    event(_logger, "attribute_without_effect", attribute=attribute)


def _whole(name: str, text: str) -> int:
    low, high = RANGES[name]
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    if not is_number or not low <= int(digits) <= high:
        raise _invalid(name, f"it must be a number from {low} to {high}")
    return int(digits)


def _redrive_policy(call: Call, text: str) -> dict[str, Any]:
    if not text:
        return {"dead_letter_queue": None, "max_deliveries": None}
    found = _json(text, REDRIVE)
    arn, count = found.get("deadLetterTargetArn"), found.get("maxReceiveCount")
    if not isinstance(arn, str) or len(found) > 2:  # noqa: PLR2004 - these two
        raise _invalid(REDRIVE, "it has a deadLetterTargetArn and a maxReceiveCount")
    name = name_of_arn(arn, call.number)
    if name is None:
        raise wrong(REDRIVE, "Dead letter target owner should be same as the source.")
    return {
        "dead_letter_queue": call.allowed(name, Right.PUT),
        "max_deliveries": _whole(REDRIVE, str(count)),
    }


def _check_redrive_allow_policy(call: Call, text: str) -> None:
    found = _json(text, ALLOW)
    permission, named = found.get("redrivePermission"), found.get("sourceQueueArns", [])
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise _invalid(ALLOW, "its redrivePermission is allowAll, denyAll or byQueue")
    if not isinstance(named, list) or len(named) > MOST_SOURCES:
        raise _invalid(ALLOW, f"its sourceQueueArns is a list of up to {MOST_SOURCES} ARNs")
    if named and permission != "byQueue":
        raise _invalid(ALLOW, "only with byQueue it has sourceQueueArns")
    if not all(isinstance(one, str) and _name_in(call, one) for one in named):
        raise _invalid(ALLOW, "its sourceQueueArns are ARNs of your queues")


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        found = from_json(text)
    except TooManyValues as error:
        raise _invalid(name, f"it has more than {FIELDS} values") from error
    except ValueError as error:
        raise _invalid(name, "it is not JSON") from error
    if not isinstance(found, dict):
        raise _invalid(name, "it is not a JSON object")
    return found


def _unknown(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name[:200]}.")


def _invalid(name: str, why: str) -> SqsError:
    # The JSON protocol has an error of its own for this, the query protocol has not: one for both.
    return SqsError(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {why}."
    )
