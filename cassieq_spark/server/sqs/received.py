"""Show a received message as SQS does: its body, its attributes, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cassieq_spark.model import dead_letter
from cassieq_spark.model.dead import REDRIVE
from cassieq_spark.server.sqs import attributes as settings
from cassieq_spark.server.sqs import bodies
from cassieq_spark.server.sqs.parameters import Typed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.sqs.call import Call

KNOWN: Final = frozenset({
    "AWSTraceHeader", "ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount",
    "DeadLetterQueueSourceArn", "MessageDeduplicationId", "MessageGroupId", "SenderId",
    "SentTimestamp", "SequenceNumber",
})  # fmt: skip
"""What may be asked for, as botocore's model has it. Names of queue attributes are ignored: older
models listed those in their place, so SDKs offer them to this day."""


class Asked(NamedTuple):
    """Which attributes a request asks for: those of the system by name, and those of senders."""

    system: set[str]
    attributes: bodies.Wanted


class _Past(NamedTuple):
    """The past of a dead letter, in the queues it died in: since when, and how often delivered."""

    since: datetime
    deliveries: int


def wanted_of(call: Call) -> Asked:
    """The attributes that a request asks for.

    Raises:
        SqsError: There is no such attribute of the system.
    """
    asked = {*(call.get("AttributeNames") or ()), *(call.get("MessageSystemAttributeNames") or ())}
    settings.check_known(asked - KNOWN)
    return Asked(
        set(KNOWN) if "All" in asked else asked,
        bodies.Wanted(call.get("MessageAttributeNames") or ()),
    )


def shown(call: Call, message: Message, wanted: Asked, now_ms: int) -> dict[str, Any]:
    """One message of the answer."""
    text, is_base64 = bodies.text_of(message.body)
    found: dict[str, Any] = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt,
        "MD5OfBody": bodies.md5_of(text),
        "Body": text,
    }
    if wanted.system:
        known = _system_attributes(call, message, now_ms)
        asked = {key: one for key, one in known.items() if key in wanted.system}
        found |= {"Attributes": asked} if asked else {}
    attributes = bodies.attributes_of(message.headers, wanted.attributes)
    if is_base64:
        attributes[bodies.ENCODING] = Typed(data_type="String", text="base64")
    if attributes:
        found["MD5OfMessageAttributes"] = bodies.md5_of_attributes(attributes)
        found["MessageAttributes"] = {name: bodies.shown(one) for name, one in attributes.items()}
    return found


def _system_attributes(call: Call, message: Message, now_ms: int) -> dict[str, str]:
    letter = dead_letter.headers_of(message.headers)
    # Older releases wrote into a redriven message, too, where it came from.
    source = None if letter.reason == REDRIVE else letter.source_queue
    past = _Past(message.enqueued_at, 0)
    if source is not None:
        past = _past_of(message.headers, past)
    sent_ms = int(past.since.timestamp() * 1_000)
    received = past.deliveries + message.delivery_count
    known = {
        "SenderId": call.number,
        "SentTimestamp": str(sent_ms),
        "ApproximateReceiveCount": str(received),
        # A queue counts deliveries, and stores no time of the first: it was not before this.
        "ApproximateFirstReceiveTimestamp": str(max(now_ms, sent_ms) if received == 1 else sent_ms),
    }
    if (trace := message.headers.get(bodies.TRACE_HEADER)) is not None:
        known["AWSTraceHeader"] = trace
    if message.group is not None:
        known["MessageGroupId"] = message.group
    if source is not None and (arn := call.arn(source)) is not None:
        known["DeadLetterQueueSourceArn"] = arn
    return known


def _past_of(headers: Mapping[str, str], now: _Past) -> _Past:
    """A dead letter keeps its time and its count, through all queues it died in one after another.

    They begin again where it was redriven, as AWS has it.
    """
    past = now
    for hop in reversed(dead_letter.history_of(headers)):
        if not isinstance(hop, dict):
            break
        texts = {dead_letter.PREFIX + key: text for key, text in hop.items() if type(text) is str}
        death = dead_letter.headers_of(texts)
        if death.reason == REDRIVE or death.first_time is None:
            break
        past = _Past(death.first_time, past.deliveries + (death.deliveries or 0))
    return past
