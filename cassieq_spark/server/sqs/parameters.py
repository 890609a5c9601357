"""Read and check what a request gives for the parameters of an action."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.dense import has_more_values
from cassieq_spark.server.sqs.errors import SqsError, empty_batch, invalid, missing

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def batch_of(entry: Parameters) -> Parameters:
    """Those of a batch."""
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
        known = checked(parameters("Id"), given)  # without one, nobody could be told
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
