"""Read what a request gives for the parameters of its action, in either protocol of SQS.

The protocols are AWS JSON 1.0, and the older query protocol with its XML answers. `checked` checks
and converts what either has given.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl
from xml.etree import ElementTree as Xml

from cassieq_spark.model.dense import has_more_values
from cassieq_spark.server.door import as_json, in_slices
from cassieq_spark.server.sqs.call import SqsError, empty_batch, invalid, missing, readable

T = TypeVar("T")

MOST_IN_BATCH: Final = 10

FIELDS: Final = 2_000
"""The most fields of a form, and values in JSON: ten entries with all their attributes have
fewer."""

FAILURE: Final = "failure"
"""The error of an entry of a batch whose parameters are wrong, among them. It fails alone."""


class TooManyValues(ValueError):
    """JSON has so many values that parsing them would keep others waiting."""


def from_json(text: str | bytes) -> Any:
    """The value of a text.

    Raises:
        TooManyValues: It has more values than any request needs.
        ValueError: It is not JSON.
    """
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if has_more_values(raw, FIELDS):
        raise TooManyValues
    try:
        # Of UTF-8 only: bytes of another encoding, which `json` would find out, count otherwise.
        return json.loads(raw.decode("utf-8-sig", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


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


def parameters(*required: str, **kinds: Kind) -> Parameters:
    """Parameters by name. Required ones are texts unless a keyword says otherwise."""
    return Parameters(kinds={**dict.fromkeys(required, Kind.TEXT), **kinds}, required=required)


def batch_of(*required: str, **kinds: Kind) -> Parameters:
    """Parameters of a batch, by those of its entries."""
    entry = parameters("Id", *required, **kinds)
    return replace(parameters("QueueUrl", "Entries", Entries=Kind.ENTRIES), entries=entry)


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
            return {key: _typed_of(name, key, one) for key, one in value.items()}
        case (Kind.ENTRIES, list()) if all(isinstance(one, dict) for one in value) and entries:
            return [_entry(entries, one) for one in value]
        case _:
            raise SqsError("SerializationException", f"{name} must be a {kind.value}.")


def _entry(wanted: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one entry of a batch; or its id, and what is wrong with it."""
    try:
        return checked(wanted, given)
    except SqsError as error:
        known = checked(parameters("Id"), given)  # without one, nobody could be told
        is_form = error.name == "SerializationException"  # which is of whole requests
        return {**known, FAILURE: invalid(error.message) if is_form else error}


def _typed_of(name: str, key: str, value: object) -> Typed:
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


# --- the protocols --------------------------------------------------------------------------------

TARGET: Final = "AmazonSQS."
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
MOST_PARTS: Final = 7
"""No name of a field has more parts between dots."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

_MEMBERS: Final = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "tags": "Tag",
}
"""The name of one member of a list or map in the query protocol."""
_PLURALS: Final = {"QueueUrls": "QueueUrl", "queueUrls": "QueueUrl", "Messages": "Message"}


class JsonProtocol:
    """AWS JSON 1.0: the action is in the header ``X-Amz-Target``, the rest is JSON."""

    content_type = "application/x-amz-json-1.0"

    def __init__(self, action: str, body: bytes) -> None:
        self.action = action
        self._body = body

    def parameters(self, wanted: Parameters) -> dict[str, Any]:  # noqa: ARG002 - a form needs them
        """Return the parameters of the request.

        Raises:
            SqsError: It is not a JSON object.
        """
        try:
            found = from_json(self._body or b"{}")
        except TooManyValues as error:
            raise invalid(f"The request has more than {FIELDS} values.") from error
        except ValueError as error:
            raise SqsError("SerializationException", "The request is not JSON.") from error
        if not isinstance(found, dict):
            raise SqsError("SerializationException", "The request is not a JSON object.")
        if isinstance(found.get("Entries"), list):
            few(found["Entries"])
        return found

    def answer(self, result: Mapping[str, Any], request_id: str) -> bytes:  # noqa: ARG002 - XML has it
        """A result as the body of a response."""
        return as_json(result)

    def failure(self, error: SqsError, request_id: str) -> bytes:  # noqa: ARG002 - XML has it
        """An error as the body of a response."""
        return json.dumps(
            {"__type": f"com.amazonaws.sqs#{error.name}", "message": error.message}
        ).encode()


class QueryProtocol:
    """A form with the parameters in; XML out."""

    content_type = "text/xml"

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.action = fields.get("Action", "")
        self._fields = fields

    def parameters(self, wanted: Parameters) -> dict[str, Any]:
        """Return the parameters of the form, in the form of the JSON protocol.

        Raises:
            SqsError: A number is not a number.
        """
        return _read(_Form(self._fields), wanted, self.action, "")

    def answer(self, result: Mapping[str, Any], request_id: str) -> bytes:
        """A result as the body of a response."""
        root = Xml.Element(f"{self.action}Response", xmlns=NAMESPACE)
        if result:
            _write(Xml.SubElement(root, f"{self.action}Result"), result, self.action)
        metadata = Xml.SubElement(root, "ResponseMetadata")
        Xml.SubElement(metadata, "RequestId").text = request_id
        return _bytes(root)

    def failure(self, error: SqsError, request_id: str) -> bytes:
        """An error as the body of a response."""
        root = Xml.Element("ErrorResponse", xmlns=NAMESPACE)
        inner = Xml.SubElement(root, "Error")
        Xml.SubElement(inner, "Type").text = "Sender" if error.is_senders else "Receiver"
        Xml.SubElement(inner, "Code").text = error.query_code
        Xml.SubElement(inner, "Message").text = error.message
        Xml.SubElement(root, "RequestId").text = request_id
        return _bytes(root)


def protocol_of(
    target: str | None, body: bytes = b"", query: str = ""
) -> JsonProtocol | QueryProtocol:
    """The protocol that a request speaks, by its header; a form may be in the URL, too.

    Raises:
        SqsError: The form has too many fields, or is not text.
    """
    if target is not None:
        return JsonProtocol(target.removeprefix(TARGET), body)
    try:
        pairs = parse_qsl(
            body.decode() or query,
            keep_blank_values=True,
            max_num_fields=FIELDS,
            strict_parsing=False,
            errors="strict",
        )
    except ValueError as error:
        raise SqsError("InvalidParameterValue", "The request is not a form in UTF-8.") from error
    return QueryProtocol(dict(pairs))


def _bytes(root: Xml.Element) -> bytes:
    text: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    # Else a client reads it as the end of a line.
    return in_slices(text, lambda some: some.replace(b"\r", b"&#13;"))


def few(entries: list[T]) -> list[T]:
    """Return the entries of a batch that has an allowed number of them: no more are looked at.

    Raises:
        SqsError: There are too many.
    """
    if len(entries) > MOST_IN_BATCH:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MOST_IN_BATCH}. You have sent "
            f"{len(entries)}.",
        )
    return entries


class _Form:
    """The fields of a form, and the numbers of each list's members: looked for once."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        self._numbers: dict[str, set[str]] = {}
        for name in fields:
            # `Entry.1.Attribute.2.Name` is of members of `Entry` and of `Entry.1.Attribute`.
            parts = name.split(".", MOST_PARTS)
            for at in range(1, min(len(parts), MOST_PARTS)):
                number = parts[at]
                # A list is not that long.
                if len(number) < 6 and number.isascii() and number.isdigit():  # noqa: PLR2004
                    self._numbers.setdefault(".".join(parts[:at]), set()).add(number)

    def numbers(self, member: str) -> list[str]:
        """The numbers of a list's members, ascending, as they are spelt."""
        return sorted(self._numbers.get(member, ()), key=int)


def _read(form: _Form, wanted: Parameters, action: str, at: str) -> dict[str, Any]:
    found = {}
    for name, kind in wanted.kinds.items():
        value = _field(form, wanted, action, f"{at}{name}", kind)
        if value not in (None, [], {}):
            found[name] = value
    return found


def _field(form: _Form, wanted: Parameters, action: str, name: str, kind: Kind) -> Any:
    fields = form.fields
    prefix, _, own = name.rpartition(".")
    stem = f"{prefix}." if prefix else ""
    member = stem + _MEMBERS.get(own, own)
    match kind:
        case Kind.TEXT:
            return fields.get(name)
        case Kind.WHOLE:
            return _number(name, fields.get(name), is_of_entry=bool(prefix))
        case Kind.TEXTS:
            numbered = (f"{member}.{at}" for at in form.numbers(member))
            return [fields[one] for one in numbered if one in fields]
        case Kind.MAP:
            return dict(_pair(fields, f"{member}.{at}") for at in form.numbers(member))
        case Kind.TYPED:
            return dict(_typed(fields, f"{member}.{at}") for at in form.numbers(member))
        case Kind.ENTRIES:
            entry = f"{action}RequestEntry"
            assert wanted.entries is not None  # noqa: S101 - `batch_of` says so
            return [
                _read(form, wanted.entries, action, f"{entry}.{at}.")
                for at in few(form.numbers(entry))
            ]


def _number(name: str, text: str | None, *, is_of_entry: bool) -> int | str | None:
    if text is None:
        return None
    if not _WHOLE.fullmatch(text):
        if is_of_entry:
            return text  # `checked` refuses it, and its entry fails alone
        raise SqsError("InvalidParameterValue", f"Value for parameter {name} must be a number.")
    return int(text)


def _pair(fields: Mapping[str, str], at: str) -> tuple[str, str]:
    name = fields.get(f"{at}.Name", fields.get(f"{at}.Key", ""))
    return name, fields.get(f"{at}.Value", "")


def _typed(fields: Mapping[str, str], at: str) -> tuple[str, dict[str, str]]:
    parts = {
        part: fields[f"{at}.Value.{part}"]
        for part in ("DataType", "StringValue", "BinaryValue")
        if f"{at}.Value.{part}" in fields
    }
    return fields.get(f"{at}.Name", ""), parts


def _write(parent: Xml.Element, result: Mapping[str, Any], action: str) -> None:
    for name, value in result.items():
        if isinstance(value, list):
            for one in value:
                _write_one(parent, _tag(name, action), one, action)
        elif isinstance(value, dict) and name in _MEMBERS:
            first, second = ("Key", "Value") if name == "Tags" else ("Name", "Value")
            for key, one in value.items():
                pair = Xml.SubElement(parent, _MEMBERS[name])
                _write_one(pair, first, key, action)
                _write_one(pair, second, one, action)
        else:
            _write_one(parent, name, value, action)


def _write_one(parent: Xml.Element, tag: str, value: object, action: str) -> None:
    element = Xml.SubElement(parent, tag)
    if isinstance(value, dict):
        _write(element, value, action)
    elif isinstance(value, bool):
        element.text = str(value).lower()
    else:
        element.text = readable(str(value))


def _tag(name: str, action: str) -> str:
    if name == "Failed":
        return "BatchResultErrorEntry"
    if name in ("Successful", "Results"):
        return f"{action}ResultEntry"
    return _PLURALS.get(name, name)
