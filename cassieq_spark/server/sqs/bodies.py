"""Bodies and message attributes: how SQS sends them, how a queue stores them, and their MD5.

A message attribute is a header of its name. A type other than ``String`` is a header, too:
``sqs.type.<name>``; the bytes of a binary attribute are stored as base64. So a message that a
program puts with headers has them as attributes here, and the other way round.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cassieq_spark.server.sqs.actions import Typed
from cassieq_spark.server.sqs.errors import SqsError, invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TYPE_PREFIX: Final = "sqs.type."
TRACE_HEADER: Final = "sqs.AWSTraceHeader"
OWN_PREFIXES: Final = ("sqs.", "cassieq-")
"""Headers that are no attributes, unless a receiver names them: they are the queue's own."""

ENCODING: Final = "cassieq-body-encoding"
MOST_ATTRIBUTES: Final = 10

_NAME: Final = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE: Final = re.compile(r"(String|Number|Binary)(\.[^\s]{1,248})?")
_NUMBER: Final = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*")
# What XML 1.0 can carry, as AWS has it.
_TEXT: Final = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


def body_of(text: str) -> bytes:
    """The body to store.

    Raises:
        SqsError: It is empty, or has a character that SQS does not allow.
    """
    if not text:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if not _TEXT.fullmatch(text):
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
    if text and _TEXT.fullmatch(text):
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
        if name != "AWSTraceHeader" or typed.data_type != "String" or not typed.text:
            raise invalid(f"Message system attribute {name!r} must be AWSTraceHeader, a String.")
        headers[TRACE_HEADER] = typed.text
    return headers


def attributes_of(headers: Mapping[str, str], wanted: Iterable[str]) -> dict[str, Typed]:
    """The attributes that a receiver asks for: by name, ``All``, ``.*`` or ``prefix.*``."""
    names = list(wanted)
    if not names:
        return {}
    found = {}
    for name, text in headers.items():
        if name.startswith("sqs.") or not _is_wanted(name, names):
            continue
        shown_as = name if _TEXT.fullmatch(name) else quote(name)
        found[shown_as] = _typed(text, headers.get(TYPE_PREFIX + name, "String"))
    return found


def shown(typed: Typed) -> dict[str, Any]:
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
        digest.update(b"\x01" if typed.raw is None else b"\x02")
        add((typed.text or "").encode() if typed.raw is None else typed.raw)
    return digest.hexdigest()


def size_of(body: bytes, attributes: Mapping[str, Typed]) -> int:
    """The size of a message, as AWS counts it: with names, types and values of attributes."""
    return len(body) + sum(
        len(name.encode())
        + len(typed.data_type.encode())
        + (len((typed.text or "").encode()) if typed.raw is None else len(typed.raw))
        for name, typed in attributes.items()
    )


def _check_attribute(name: str, typed: Typed) -> None:
    lower = name.lower()
    is_reserved = lower.startswith(("aws.", "amazon.", *OWN_PREFIXES))
    if not _NAME.fullmatch(name) or is_reserved:
        raise invalid(f"Message attribute name {name[:300]!r} is not allowed.")
    if not _TYPE.fullmatch(typed.data_type):
        raise invalid(
            f"The type of message (user) attribute {name!r} is invalid. You must use only the "
            "following supported type prefixes: Binary, Number, String."
        )
    is_binary = typed.data_type.startswith("Binary")
    if not (typed.raw if is_binary else typed.text):
        raise invalid(
            f"Message (user) attribute {name!r} must contain a non-empty value of type "
            f"{typed.data_type!r}."
        )
    text = typed.text or ""
    if not is_binary and not _TEXT.fullmatch(text):
        raise invalid(f"The value of message attribute {name!r} has invalid characters.")
    if typed.data_type.startswith("Number") and not _NUMBER.fullmatch(text):
        raise invalid(f"Can't cast the value of message (user) attribute {name!r} to a number.")


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
    if not _TEXT.fullmatch(text):
        return Typed(data_type="Binary", raw=text.encode())
    return Typed(data_type=data_type if _TYPE.fullmatch(data_type) else "String", text=text)


def _is_wanted(name: str, names: Iterable[str]) -> bool:
    for one in names:
        if one in ("All", ".*", "*"):
            if not name.startswith(OWN_PREFIXES):
                return True
        elif one == name or (one.endswith(".*") and name.startswith(one[:-2])):
            return True
    return False
