"""Errors as RFC 9457 problems, and the HTTP status of each class of error."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from cassieq_spark.errors import (
    AccessDenied,
    AccountNotFound,
    AuthenticationFailed,
    CassieqError,
    KeyNotFound,
    OptionInvalid,
    PutAmbiguous,
    QueueDeleted,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    ReceiptExpired,
    ReceiptInvalid,
    StoreTimeout,
    TooManyKeys,
    UsageError,
)
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.backend import COME_AGAIN
from cassieq_spark.server.turns import Busy

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "/docs#"
"""The address of a problem's description: its code is added."""

STATUS: Final[dict[type[Exception], int]] = {
    UsageError: 400,
    ReceiptInvalid: 400,
    AuthenticationFailed: 401,
    AccessDenied: 403,
    AccountNotFound: 404,
    KeyNotFound: 404,
    TooManyKeys: 409,
    QueueNotFound: 404,
    QueueDeleted: 404,
    QueueExists: 409,
    QueueInUse: 409,
    ReceiptExpired: 409,
    Busy: 503,
    **dict.fromkeys(COME_AGAIN, 503),
}
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


VERDICTS: Final[dict[str, type[CassieqError]]] = {
    Verdict.STALE: ReceiptExpired,
    Verdict.UNKNOWN: StoreTimeout,
}
"""What a verdict without a problem means: the error that is the answer to one receipt."""


class Refusal(Exception):
    """A request is refused before the client is asked."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


class FieldInvalid(UsageError):
    """A field of a request is wrong.

    Attributes:
        field: Its name, with dots: ``messages.3.delay``.
        kind: The error that it is.
    """

    def __init__(
        self, message: str, *, field: str = "", kind: type[CassieqError] = OptionInvalid
    ) -> None:
        super().__init__(message)
        self.field = field
        self.kind = kind


def status_of(error: Exception) -> int:
    """The status of an error; 500 if no request can have it."""
    return error.status if isinstance(error, Refusal) else status_of_class(type(error))


def status_of_class(kind: type[Exception]) -> int:
    """The status of a class of errors; 500 if no request can have it."""
    return next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)


def code_of(error: Exception) -> str:
    """The code of an error's problem."""
    return str(problem_of(error)["code"])


def problem_of(error: Exception, request_id: str = "") -> dict[str, Any]:
    """An error as the members of a problem."""
    status = status_of(error)
    if isinstance(error, CassieqError) and status != HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = error.kind if isinstance(error, FieldInvalid) else type(error)
        found = _problem(status, kind.code, kind.meaning, error.message)
        if isinstance(error, FieldInvalid):
            found["field"] = error.field
        if isinstance(error, PutAmbiguous):
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


def failed_in(body: object) -> list[tuple[str, int]]:
    """Code and status of each entry that has failed, in an answer with a result for each entry."""
    found = []
    for one in body.get("results", ()) if isinstance(body, dict) else ():
        if (problem := one.get("problem")) is not None:
            found.append((problem["code"], problem["status"]))
        elif (kind := VERDICTS.get(one.get("verdict"))) is not None:
            found.append((kind.code, status_of_class(kind)))
    return found


def problem_response(error: Exception, request_id: str = "") -> Response:
    """An error as a response."""
    found = problem_of(error, request_id)
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if found["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    elif found["status"] == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "AWS4-HMAC-SHA256, Bearer"
    return Response(
        json.dumps(found), status_code=found["status"], media_type=MEDIA_TYPE, headers=headers
    )


def _problem(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"{TYPE}{code}", "title": title, "status": status, "detail": detail, "code": code,
    }  # fmt: skip
