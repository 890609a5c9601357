"""`Call` is a request of the REST door: how its parts are read, and what may be the answer.

Bodies and queries are read into models; what is wrong is named, with what is allowed. Errors are
problems (RFC 9457), each class with its HTTP status.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from http import HTTPStatus
from types import NoneType
from typing import Any, ClassVar, Final, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl

import jiter
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic import ValidationError as Invalid
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function
from starlette.types import Scope

from cassieq_spark import errors
from cassieq_spark.errors import CassieqError, OptionInvalid, OptionUnknown
from cassieq_spark.model.dense import has_more_values
from cassieq_spark.model.rights import Right
from cassieq_spark.options.values import NotAllowed, Values
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.server import door
from cassieq_spark.server.backend import Busy
from cassieq_spark.server.door import note_fault, request_id_of, status_of_class
from cassieq_spark.server.guards import Refusal, asked_of

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A result with its status.

    Attributes:
        body: A JSON object, or bytes; None: there is no body.
        status: None: the usual one of the operation.
        media_type: Of the bytes.
    """

    body: dict[str, Any] | bytes | None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = RAW


@dataclass(slots=True, kw_only=True)
class Call(door.Call):
    """A request.

    Attributes:
        query: An instance of the operation's query.
        body: An instance of the operation's body, or bytes.
        is_raw: Whether the answer shall be the bytes of one message.
    """

    query: Any
    body: Any
    is_raw: bool

    def target(self, name: str) -> str:
        """A queue that messages shall go to, as the client knows it.

        Raises:
            OptionInvalid: It is a queue of another account.
            AccessDenied: The caller may not put messages there.
        """
        queue = self.principal.full_name(name)
        self.principal.require(Right.PUT, queue)
        return queue


# --- problems -------------------------------------------------------------------------------------

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "/docs#"
"""The address of a problem's description: its code is added."""


REFUSALS: Final[dict[int, tuple[str, str]]] = {
    403: ("forbidden", "The request does not come from where it should."),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "The resource does not have this method."),
    406: ("not_acceptable", "The answer has none of the media types that the request accepts."),
    413: ("content_too_large", "The body of the request is longer than the gateway allows."),
    415: ("unsupported_media_type", "The body of the request has another media type than allowed."),
    500: ("internal", "The gateway has a fault."),
    503: ("busy", "The gateway has too many requests to do."),
}
"""Code and title of the problems that are not errors of the client, by status."""


VERDICTS: Final[dict[str, type[errors.CassieqError]]] = {
    AckResult.STALE: errors.ReceiptExpired,
    AckResult.UNKNOWN: errors.StoreTimeout,
}
"""The meaning of a verdict without a problem: the error that is the answer to one receipt."""


class FieldInvalid(errors.UsageError):
    """A field of a request is wrong.

    Attributes:
        field: Its name, with dots: ``messages.3.delay``.
        kind: The error that it is.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        kind: type[errors.CassieqError] = errors.OptionInvalid,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.kind = kind


def problem_of(error: Exception, request_id: str = "") -> dict[str, Any]:
    """An error as the members of a problem."""
    status = error.status if isinstance(error, Refusal) else status_of_class(type(error))
    if isinstance(error, errors.CassieqError) and status != HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = error.kind if isinstance(error, FieldInvalid) else type(error)
        found = _problem(status, kind.code, kind.meaning, error.message)
        if isinstance(error, FieldInvalid):
            found["field"] = error.field
        if isinstance(error, errors.PutAmbiguous):
            found["message_ids"] = list(error.message_ids)
        return found
    code, title = REFUSALS[status]
    if isinstance(error, Refusal):
        return _problem(status, code, title, error.detail)
    if isinstance(error, Busy):
        return _problem(status, code, title, "Send the request again later.")
    return _problem(
        status, code, title, f"The gateway's log says what has happened: request {request_id}."
    )


def noted(error: Exception, scope: Scope, door: str) -> dict[str, Any]:
    """The problem that a door answers with; it is noted, and logged if it is a fault of ours."""
    found = problem_of(error, request_id_of(scope))
    asked_of(scope).code = found["code"]
    if found["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
        note_fault(error, scope, door)
    return found


def failed_in(body: object) -> list[tuple[str, int]]:
    """Code and status of each entry that has failed, in an answer with a result for each entry."""
    found = []
    for one in body.get("results", ()) if isinstance(body, dict) else ():
        if (problem := one.get("problem")) is not None:
            found.append((problem["code"], problem["status"]))
        elif (kind := VERDICTS.get(one.get("verdict"))) is not None:
            found.append((kind.code, status_of_class(kind)))
    return found


def _problem(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"{TYPE}{code}", "title": title, "status": status, "detail": detail, "code": code,
    }  # fmt: skip


M = TypeVar("M", bound=BaseModel)

# --- reading --------------------------------------------------------------------------------------

MOST_PARAMETERS: Final = 200
SIGNED: Final = "x-amz-"
"""Parameters of a signature begin with this."""
MOST_DIGITS: Final = 19
ALLOWED: Final = "allowed:"
"""An error that begins with this does not say which value it is about."""

VALUES: Final = 10_000
BYTES_EACH: Final = 64
"""A body of JSON may have `VALUES` values, and one more for each `BYTES_EACH` bytes. To parse and
check one takes up to two microseconds, in which nobody else is served."""

_WHOLE: Final = re.compile(rf"-?[0-9]{{1,{MOST_DIGITS}}}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,19})?")


class Strict(BaseModel):
    """A body or query: nothing is converted, and nothing unknown is let through.

    Attributes:
        is_needed: Whether it says nothing that can be done if it is empty.
    """

    is_needed: ClassVar[bool] = False
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, found: object) -> object:
        # Else each of a hundred thousand unknown names becomes an error of its own.
        if isinstance(found, dict) and len(found) > MOST_PARAMETERS:
            raise OptionUnknown(
                f"an object has {len(found):,} names, and none has more than {MOST_PARAMETERS}. "
                f"Known: {', '.join(cls.model_fields) or 'none'}"
            )
        return found


class Nothing(Strict):
    """No parameters."""


@dataclass(frozen=True, slots=True, eq=False)  # a schema is a dict, which has no hash
class Ranged:
    """Annotates a field with values of the package, so that their range is described once."""

    values: Values[Any]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        """Let the values check the field."""
        return no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: object) -> dict[str, Any]:
        """Describe the field by the range of the values."""
        return dict(self.values.schema)

    def _checked(self, value: object) -> Any:
        try:
            return self.values.parse(value)
        except NotAllowed as error:
            # JSON has no timedelta: the words before the colon are the range.
            allowed = self.values.allowed.partition(": seconds")[0]
            raise OptionInvalid(f"{ALLOWED} {allowed}") from error


def wrong_alone(*kinds: type) -> BeforeValidator:
    """Let an object of many members fail by the first one of another type.

    Only the first error is shown. Else each wrong member would become an error of its own.
    """

    def check(found: object) -> object:
        if isinstance(found, dict):
            for name, one in found.items():
                if not isinstance(one, kinds):
                    return {name: one}
        return found

    return BeforeValidator(check)


def from_json(model: type[M], body: bytes) -> M:
    """Read a body of JSON.

    Raises:
        FieldInvalid: It is not JSON, has too many tiny values, or a field is wrong.
    """
    most = VALUES + len(body) // BYTES_EACH
    if has_more_values(body, most):
        raise FieldInvalid(
            f"the body has more than {most:,} values, and most of them are tiny: {VALUES:,} are "
            f"allowed, and one more for each {BYTES_EACH} bytes. Send fewer at once",
            field="body",
        )
    try:
        found = jiter.from_json(
            body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True
        )
    except ValueError as error:
        raise FieldInvalid(
            f"the body is not JSON: {str(error)[:200]}. Send JSON in UTF-8, each name once",
            field="body",
        ) from error
    return _checked(model, found)


def from_query(model: type[M], query: bytes) -> M:
    """Read a query string.

    Raises:
        FieldInvalid: It is not UTF-8, or a parameter is wrong.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MOST_PARAMETERS,
            errors="strict",
        )
    except ValueError as error:
        raise FieldInvalid(
            f"the query is not a form in UTF-8 of at most {MOST_PARAMETERS} parameters. Encode "
            "other characters with %",
            field="query",
        ) from error
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name.lower().startswith(SIGNED):
            continue
        field = model.model_fields.get(name)
        kind = str if field is None else _kind(field.annotation)
        if kind is list:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise FieldInvalid(f"parameter {name!r} is there twice. Give it once", field=name)
        else:
            found[name] = _converted(kind, text)
    return _checked(model, found)


def _kind(annotation: Any) -> Any:
    """The type of a parameter: of ``float | None`` it is ``float``."""
    if get_origin(annotation) is list:
        return list
    inner = [one for one in get_args(annotation) if one is not NoneType]
    return _kind(inner[0]) if inner else annotation


def _converted(kind: Any, text: str) -> object:
    """The value of a parameter; text that has another form stays text, and is refused."""
    if kind is int and _WHOLE.fullmatch(text):
        return int(text)
    if kind is float and _NUMBER.fullmatch(text):
        return float(text)
    if kind is bool and text in ("true", "false"):
        return text == "true"
    return text


def _checked(model: type[M], found: object) -> M:
    try:
        return model.model_validate(found)
    except Invalid as error:
        raise _refusal(model, error) from error


def _refusal(model: type[BaseModel], error: Invalid) -> FieldInvalid:
    """The first error of a body or query, in our words."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"])) or "body"
    cause = first.get("ctx", {}).get("error")
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields) or "none"
        hint = f", known: {known}" if len(first["loc"]) == 1 else ""
        return FieldInvalid(
            f"{reprlib.repr(field)} is not a field of this request{hint}",
            field=field,
            kind=OptionUnknown,
        )
    if first["type"] == "missing":
        return FieldInvalid(f"{field} is missing. Give it a value", field=field)
    if isinstance(cause, CassieqError) and not cause.message.startswith(ALLOWED):
        return FieldInvalid(cause.message, field=field, kind=type(cause))
    why = first["msg"].replace("Input should", "but it should", 1)
    if isinstance(cause, CassieqError):
        why = cause.message
    return FieldInvalid(f"{field} is {_shown(first['input'])}, {why}", field=field)


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a very large number"
