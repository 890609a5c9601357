"""Errors as RFC 9457 problems, and the HTTP status of each class of error."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark import errors
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.backend import COME_AGAIN
from cassieq_spark.server.door import note_fault, request_id_of
from cassieq_spark.server.guards import Refusal
from cassieq_spark.server.measured import asked_of
from cassieq_spark.server.turns import Busy

if TYPE_CHECKING:
    from starlette.types import Scope

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "/docs#"
"""The address of a problem's description: its code is added."""

_KINDS: Final[dict[int, tuple[type[Exception], ...]]] = {
    400: (errors.UsageError, errors.ReceiptInvalid),
    401: (errors.AuthenticationFailed,),
    403: (errors.AccessDenied,),
    404: (
        errors.AccountNotFound, errors.KeyNotFound, errors.QueueNotFound, errors.QueueDeleted,
    ),
    409: (errors.TooManyKeys, errors.QueueExists, errors.QueueInUse, errors.ReceiptExpired),
    503: (Busy, *COME_AGAIN),
}  # fmt: skip
STATUS: Final = {kind: status for status, kinds in _KINDS.items() for kind in kinds}
"""The status of each class of error; a class that is not here has that of its nearest base."""

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
    Verdict.STALE: errors.ReceiptExpired,
    Verdict.UNKNOWN: errors.StoreTimeout,
}
"""What a verdict without a problem means: the error that is the answer to one receipt."""


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


def status_of_class(kind: type[Exception]) -> int:
    """The status of a class of errors; 500 if no request can have it."""
    return next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)


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


def headers_of(error: Exception) -> dict[str, str]:
    """The headers that belong to an error."""
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if problem_of(error)["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    return headers


def _problem(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"{TYPE}{code}", "title": title, "status": status, "detail": detail, "code": code,
    }  # fmt: skip
