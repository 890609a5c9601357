"""Bodies and message attributes: how SQS sends and shows them, how a queue stores them, their MD5.

A message attribute is a header of its name. A type other than ``String`` is a header, too:
``sqs.type.<name>``; the bytes of a binary attribute are stored as base64. So a message that a
program puts with headers has them as attributes here, and the other way round.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from cassieq_spark.model import dead_letter
from cassieq_spark.model.dead import REDRIVE
from cassieq_spark.queue.message import Delivery
from cassieq_spark.server.sqs.attributes import check_known
from cassieq_spark.server.sqs.call import Call, SqsError, invalid, is_text
from cassieq_spark.server.sqs.protocol import Typed

TYPE_PREFIX: Final = "sqs.type."
TRACE_HEADER: Final = "sqs.AWSTraceHeader"
OWN_PREFIXES: Final = ("sqs.", "cassieq-")
"""Headers that are no attributes, unless a receiver names them: they are the queue's own."""

ENCODING: Final = "cassieq-body-encoding"
MOST_ATTRIBUTES: Final = 10

_ALL: Final = frozenset({"All", ".*", "*"})
_NAME: Final = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE: Final = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

TYPE_BYTES: Final = 256
DIGITS: Final = 38
LONGEST_NUMBER: Final = 512
"""Written out, none within the range below needs as many characters."""
SMALLEST: Final = Decimal("1e-128")
LARGEST: Final = Decimal("1e126")
"""The limits of numbers in the developer guide of SQS, under "Message attribute data types"."""


def body_of(text: str) -> bytes:
    """The body to store.

    Raises:
        SqsError: It is empty, or has a character that SQS does not allow.
    """
    if not text:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if not is_text(text):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to "
            "#xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.",
        )
    return text.encode()


def text_of(body: bytes) -> tuple[str, bool]:
    """A stored body as text; the second is True if it had to be written as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text and is_text(text):
        return text, False
    if not body:
        return "", False
    return base64.b64encode(body).decode("ascii"), True


def headers_of(attributes: Mapping[str, Typed], system: Mapping[str, Typed]) -> dict[str, str]:
    """The headers to store.

    Raises:
        SqsError: An attribute has a wrong name, type or value; or there are too many.
    """
    if len(attributes) > MOST_ATTRIBUTES:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed 10.")
    headers: dict[str, str] = {}
    for name, typed in attributes.items():
        _check_attribute(name, typed)
        headers[name] = _stored(typed)
        if typed.data_type != "String":
            headers[TYPE_PREFIX + name] = typed.data_type
    for name, typed in system.items():
        if name != "AWSTraceHeader" or typed.data_type != "String":
            raise invalid(
                f"Message system attribute {name[:300]!r} must be AWSTraceHeader, a String."
            )
        _check_value("system", name, typed)
        headers[TRACE_HEADER] = _stored(typed)
    return headers


class Wanted:
    """The attributes that a receiver asks for: by name, ``All``, ``.*`` or ``prefix.*``.

    It is made once for all messages. A name is then looked up, however many are asked for.
    """

    def __init__(self, names: Iterable[str]) -> None:
        found = set(names)
        self._has_all = not found.isdisjoint(_ALL)
        self._names = found - _ALL
        self._prefixes = {one[:-2] for one in self._names if one.endswith(".*")}
        self._lengths = sorted({len(one) for one in self._prefixes})

    def has(self, name: str) -> bool:
        """Whether an attribute of this name is asked for."""
        if name in self._names or (self._has_all and not name.startswith(OWN_PREFIXES)):
            return True
        possible = takewhile(lambda length: length <= len(name), self._lengths)
        return any(name[:length] in self._prefixes for length in possible)


def attributes_of(headers: Mapping[str, str], wanted: Wanted) -> dict[str, Typed]:
    """The attributes that a receiver asks for."""
    found = {}
    for name, text in headers.items():
        if name.startswith("sqs.") or not wanted.has(name):
            continue
        shown_as = name if is_text(name) else quote(name)
        found[shown_as] = _typed(text, headers.get(TYPE_PREFIX + name, "String"))
    return found


def _attribute(typed: Typed) -> dict[str, Any]:
    """An attribute as an answer has it."""
    if typed.raw is not None:
        value = {"BinaryValue": base64.b64encode(typed.raw).decode("ascii")}
    else:
        value = {"StringValue": typed.text or ""}
    return {**value, "DataType": typed.data_type}


def md5_of(body: str) -> str:
    """The MD5 that SDKs compare: it finds transmission errors, and protects nothing."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Typed]) -> str:
    """The MD5 of attributes, as AWS documents it: sorted by name, each part with its length."""
    digest = hashlib.md5(usedforsecurity=False)

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(4, "big") + part)

    for name in sorted(attributes):
        typed = attributes[name]
        add(name.encode())
        add(typed.data_type.encode())
        is_binary = typed.data_type.startswith("Binary")
        digest.update(b"\x02" if is_binary else b"\x01")
        add((typed.raw or b"") if is_binary else (typed.text or "").encode())
    return digest.hexdigest()


def size_of(body: bytes, attributes: Mapping[str, Typed]) -> int:
    """The size of a message, as AWS counts it: with names, types and values of attributes."""
    return len(body) + sum(
        sum(map(bytes_in, (name, typed.data_type, typed.text or ""))) + len(typed.raw or b"")
        for name, typed in attributes.items()
    )


def bytes_in(text: str) -> int:
    """The bytes of a text that may not have been checked yet: JSON may hold half a character."""
    return len(text.encode(errors="surrogatepass"))


def _check_attribute(name: str, typed: Typed) -> None:
    lower = name.lower()
    is_reserved = lower.startswith(("aws.", "amazon.", *OWN_PREFIXES))
    if not _NAME.fullmatch(name) or is_reserved:
        raise invalid(f"Message attribute name {name[:300]!r} is not allowed.")
    if not _is_type(typed.data_type):
        raise invalid(
            f"The type of message (user) attribute {name!r} is invalid. You must use only the "
            "following supported type prefixes: Binary, Number, String."
        )
    _check_value("user", name, typed)
    if typed.data_type.startswith("Number") and not _is_number(typed.text or ""):
        raise invalid(f"Can't cast the value of message (user) attribute {name!r} to a number.")


def _is_type(text: str) -> bool:
    return bool(_TYPE.fullmatch(text) and bytes_in(text) <= TYPE_BYTES and is_text(text))


def _check_value(kind: str, name: str, typed: Typed) -> None:
    is_binary = typed.data_type.startswith("Binary")
    # One value, of the type that is named.
    if (bool(typed.text), bool(typed.raw)) != (not is_binary, is_binary):
        raise invalid(
            f"Message ({kind}) attribute {name!r} must contain a non-empty value of type "
            f"{typed.data_type!r}."
        )
    if not is_text(typed.text or ""):
        raise invalid(f"Message ({kind}) attribute {name!r} has a value with invalid characters.")


def _is_number(text: str) -> bool:
    """Whether it is a number of as many digits, and of the range, that SQS takes."""
    text = text.strip()
    if len(text) > LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return False
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    return len(digits) <= DIGITS and (not number or SMALLEST <= abs(number) <= LARGEST)


def _stored(typed: Typed) -> str:
    if typed.data_type.startswith("Binary"):
        return base64.b64encode(typed.raw or b"").decode("ascii")
    return typed.text or ""


def _typed(text: str, data_type: str) -> Typed:
    if data_type.startswith("Binary"):
        try:
            return Typed(data_type=data_type, raw=base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            data_type = "String"  # somebody else wrote the header
    if not is_text(text):
        return Typed(data_type="Binary", raw=text.encode())
    return Typed(data_type=data_type if _is_type(data_type) else "String", text=text)


# --- what is received -----------------------------------------------------------------------------

KNOWN: Final = frozenset({
    "AWSTraceHeader", "ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount",
    "DeadLetterQueueSourceArn", "MessageDeduplicationId", "MessageGroupId", "SenderId",
    "SentTimestamp", "SequenceNumber",
})  # fmt: skip
"""The names that may be asked for, by botocore's model. Names of queue attributes are ignored:
older models listed those in their place, so SDKs offer them to this day."""


class Asked(NamedTuple):
    """The attributes that a request asks for: those of the system by name, and those of senders."""

    system: set[str]
    attributes: Wanted


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
    check_known(asked - KNOWN)
    return Asked(
        set(KNOWN) if "All" in asked else asked,
        Wanted(call.get("MessageAttributeNames") or ()),
    )


def shown(call: Call, message: Delivery, wanted: Asked, now_ms: int) -> dict[str, Any]:
    """Return a message as the answer has it."""
    text, is_base64 = text_of(message.body)
    found: dict[str, Any] = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt,
        "MD5OfBody": md5_of(text),
        "Body": text,
    }
    if wanted.system:
        known = _system_attributes(call, message, now_ms)
        asked = {key: one for key, one in known.items() if key in wanted.system}
        found |= {"Attributes": asked} if asked else {}
    attributes = attributes_of(message.headers, wanted.attributes)
    if is_base64:
        attributes[ENCODING] = Typed(data_type="String", text="base64")
    if attributes:
        found["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
        found["MessageAttributes"] = {name: _attribute(one) for name, one in attributes.items()}
    return found


def _system_attributes(call: Call, message: Delivery, now_ms: int) -> dict[str, str]:
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
    if (trace := message.headers.get(TRACE_HEADER)) is not None:
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
