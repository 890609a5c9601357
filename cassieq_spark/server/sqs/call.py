"""`Call` is a request of the SQS door; and errors as Amazon SQS documents them.

The names of queues on the wire are URLs and ARNs, with the number of their account. The number is
what SDKs expect where AWS has its account ids. It is made of the account's name and stored nowhere,
because nothing is looked up by it: it is only compared with the caller's own. So two accounts that
had the same number would still not reach each other's queues.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from starlette.requests import Request

from cassieq_spark import errors
from cassieq_spark.model.rights import Right
from cassieq_spark.server import door
from cassieq_spark.server.backend import Busy

_ANY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_URL: Final = 2_048
"""A name has 200 characters, and the gateway may be reached by a long one."""
_ARN_PARTS: Final = 6
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class SqsOperation(door.Operation):
    """An action of SQS: each needs a right."""

    right: Right


@dataclass(slots=True, kw_only=True)
class Call(door.Call):
    """A call of an SQS action.

    Attributes:
        beside: Runs what goes on after the answer.
        failed: Code and status of each entry of its batch that failed.
    """

    operation: SqsOperation
    parameters: dict[str, Any]
    beside: Callable[[Coroutine[Any, Any, None]], None]
    failed: list[tuple[str, int]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """A parameter; None if it was not given."""
        return self.parameters.get(name)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A parameter that is a number from a range; None if it was not given.

        Raises:
            SqsError: It is not within the range.
        """
        value: int | None = self.get(name)
        return None if value is None else within(name, value, low, high)

    @property
    def number(self) -> str:
        """The 12 digits of the caller's account."""
        return number_of(self.principal.account)

    def take_queue(self) -> None:
        """Take the queue of the parameter ``QueueUrl``, if the caller may do this to it.

        Raises:
            SqsError: It cannot be the URL of a queue of the caller's account.
            AccessDenied: The caller lacks the right.
        """
        if "QueueUrl" in self.parameters:
            name = name_of_url(self.parameters["QueueUrl"], self.number)
            self.queue = self.allowed(name)

    def queue_of_arn(
        self, parameter: str, right: Right | None = None, *, arn: str | None = None
    ) -> str:
        """The full name of the queue that an ARN names, if the caller may do this to it.

        Args:
            arn: Default: the parameter of that name.

        Raises:
            SqsError: It is not an ARN of a queue of the caller's account.
            AccessDenied: The caller lacks the right.
        """
        name = name_of_arn(self.parameters[parameter] if arn is None else arn, self.number)
        if name is None:
            raise no_resource(parameter)
        return self.allowed(name, right)

    def allowed(self, name: str, right: Right | None = None) -> str:
        """The full name of a queue of the caller's account, if the caller has a right on it.

        Args:
            right: Default: the action's.

        Raises:
            AccessDenied: It has not.
        """
        full_name = self.principal.full_name(name)
        self.principal.require(right or self.operation.right, full_name)
        return full_name

    def url(self, full_name: str) -> str:
        """The URL of a queue of the caller's account."""
        # As the caller has reached the gateway.
        at = self.request.url
        return f"{at.scheme}://{at.netloc}/{self.number}/{self.own(full_name)}"

    def arn(self, full_name: str) -> str | None:
        """The ARN of a queue; None for a queue of another account."""
        own = self.principal.own_name(full_name)
        return None if own is None else f"arn:aws:sqs:{_region(self.request)}:{self.number}:{own}"

    def visible(self, full_names: Iterable[str]) -> list[str]:
        """The queues that the caller may see in lists.

        Raises:
            AccessDenied: It may see none at all.
        """
        right = self.operation.right
        self.principal.require_somewhere(right)
        return [one for one in full_names if self.principal.may(right, one)]

    def own(self, full_name: str) -> str:
        """The name of a queue of the caller's account as the caller knows it."""
        return self.principal.own_name(full_name) or full_name


def _region(request: Request) -> str:
    """The region that the caller signs for: any will do. It is only a part of ARNs."""
    header = request.headers.get("authorization", "").partition("Credential=")[2]
    scope = header.partition(",")[0] or request.query_params.get("X-Amz-Credential", "")
    parts = scope.split("/")
    region = parts[2] if len(parts) == 5 else ""  # noqa: PLR2004 - key/date/region/service/end
    return region if region.isascii() and region.replace("-", "").isalnum() else "local"


@lru_cache(maxsize=10_000)
def number_of(account: str) -> str:
    """The 12 digits of an account; zeros if accounts are not checked."""
    if not account:
        return "0" * _DIGITS
    hashed = int.from_bytes(hashlib.sha256(f"cassieq account {account}".encode()).digest())
    return f"{1 + hashed % (10**_DIGITS - 1):0{_DIGITS}d}"


def name_of_url(url: str, number: str) -> str:
    """The name in a queue URL. Only its path counts: behind a proxy, gateways have many addresses.

    Args:
        number: The caller's.

    Raises:
        SqsError: It cannot be the URL of a queue here, or it has the number of another account.
    """
    account = name = ""
    with suppress(ValueError):
        # To undo % takes long for its length.
        path = urlsplit(url).path if len(url) <= _LONGEST_URL else ""
        account, _, name = unquote(path).strip("/").rpartition("/")
    if not _ANY_NAME.fullmatch(name):
        raise SqsError("InvalidAddress", f"The address {url[:300]!r} is not valid for a queue.")
    if account.rpartition("/")[2] != number:
        raise no_queue()
    return name


def name_of_arn(arn: str, number: str) -> str | None:
    """The name in the ARN of a queue, in any region; None: it has another account's number.

    Raises:
        SqsError: It is not the ARN of a queue.
    """
    parts = arn.split(":", _ARN_PARTS)
    is_arn = len(parts) == _ARN_PARTS and parts[0] == "arn" and parts[2] == "sqs"
    if not is_arn or not _ANY_NAME.fullmatch(parts[-1]):
        raise invalid(f"Value {arn[:300]!r} is not the ARN of a queue.")
    return parts[-1] if parts[4] == number else None


# --- errors ---------------------------------------------------------------------------------------

NO_TEXT: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that SQS allows in no text: XML 1.0, the form of older answers, has none of them, so
no client can read an answer with one, wherever a producer wrote it."""

_NO_CONTROLS: Final = bytes({*range(256)} - ({*range(0x20)} - {*b"\t\n\r"}))
_NO_CHARACTERS: Final = ("\ufffe".encode(), "\uffff".encode())

_SQS: Final = "AWS.SimpleQueueService."
QUERY_CODES: Final[dict[str, str]] = {
    "AccessDeniedException": "AccessDenied",
    "BatchEntryIdsNotDistinct": f"{_SQS}BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": f"{_SQS}BatchRequestTooLong",
    "EmptyBatchRequest": f"{_SQS}EmptyBatchRequest",
    "IncompleteSignatureException": "IncompleteSignature",
    "InvalidBatchEntryId": f"{_SQS}InvalidBatchEntryId",
    "InvalidSignatureException": "SignatureDoesNotMatch",
    "MessageNotInflight": f"{_SQS}MessageNotInflight",
    "MissingAuthenticationTokenException": "MissingAuthenticationToken",
    "PurgeQueueInProgress": f"{_SQS}PurgeQueueInProgress",
    "QueueDoesNotExist": f"{_SQS}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "TooManyEntriesInBatchRequest": f"{_SQS}TooManyEntriesInBatchRequest",
    "UnknownOperationException": "InvalidAction",
    "UnrecognizedClientException": "InvalidClientTokenId",
    "UnsupportedOperation": f"{_SQS}UnsupportedOperation",
}
"""The code of the older protocol, where it is not the name in the JSON protocol."""

UNKNOWN_CALLERS: Final[dict[str, tuple[str, int]]] = {
    "missing": ("MissingAuthenticationTokenException", 403),
    "refused": ("UnrecognizedClientException", 403),
    "signature": ("InvalidSignatureException", 403),
    "malformed": ("IncompleteSignatureException", 400),
    "unsupported": ("IncompleteSignatureException", 400),
    "skewed": ("RequestExpired", 400),
    "expired": ("RequestExpired", 400),
}
"""The name and the status for each reason of `AuthenticationFailed`, as AWS documents them. Some
consumers pause only after a 403: with a 401 they would ask again at once, and for ever."""


class SqsError(Exception):
    """An error that the caller gets.

    Attributes:
        name: The error's name in the JSON protocol.
        is_senders: Whether the caller has made a mistake.
        is_retriable: Whether the same request may succeed later.
    """

    def __init__(
        self,
        name: str,
        message: str,
        *,
        status: int = 400,
        is_senders: bool = True,
        is_retriable: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable
        self.name = name
        self.message = readable(message)  # it may quote what a request gave
        self.status = status
        self.is_senders = is_senders

    @property
    def query_code(self) -> str:
        """The code in the older protocol, which SDKs show to this day."""
        return QUERY_CODES.get(self.name, self.name)


def is_text(text: str) -> bool:
    """Whether SQS takes it: `NO_TEXT` finds nothing in it, which takes it six times as long."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # half of a pair
        return False
    return not raw.translate(None, _NO_CONTROLS) and not any(one in raw for one in _NO_CHARACTERS)


def readable(text: str) -> str:
    """A text without characters that SQS does not allow."""
    return text if is_text(text) else NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def no_queue() -> SqsError:
    """The error for a queue that does not exist."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def invalid(message: str) -> SqsError:
    """The error for a parameter's value."""
    return SqsError("InvalidParameterValue", message)


def wrong(parameter: str, why: str, value: object = None) -> SqsError:
    """The error for a parameter's value, with the reason, in the words of AWS."""
    shown = "" if value is None else f" {value}"
    return invalid(f"Value{shown} for parameter {parameter} is invalid. Reason: {why}")


def within(parameter: str, value: int, low: int, high: int) -> int:
    """Return a number if it is within its range.

    Raises:
        SqsError: It is not.
    """
    if not low <= value <= high:
        raise wrong(parameter, f"Must be between {low} and {high}, if provided.", value)
    return value


def missing(parameter: str) -> SqsError:
    """The error for a parameter that is not there."""
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def not_found(message: str) -> SqsError:
    """The error for a task, or a queue that an ARN names, that does not exist."""
    return SqsError("ResourceNotFoundException", message, status=404)  # as AWS has it


def no_resource(parameter: str) -> SqsError:
    """The error for an ARN of no queue."""
    return not_found(
        f"The resource that you specified for the {parameter} parameter doesn't exist."
    )


def empty_batch(action: str) -> SqsError:
    """The error for a batch without entries."""
    return SqsError(
        "EmptyBatchRequest", f"There should be at least one {action}RequestEntry in the request."
    )


def translated(error: Exception) -> SqsError | None:  # noqa: PLR0911 - a table
    """Return the SQS error for an error of the client; None: no request can have that error."""
    match error:
        case SqsError():
            return error
        case errors.AccessError():
            return _refused(error)
        case errors.QueueNotFound() | errors.QueueDeleted():
            return no_queue()
        case errors.ReceiptInvalid():
            return SqsError(
                "ReceiptHandleIsInvalid", f"The input receipt handle is invalid: {error.message}."
            )
        case errors.ReceiptExpired():
            # As AWS words it for its FIFO queues.
            return wrong("ReceiptHandle", "The receipt handle has expired.")
        case errors.BodyInvalid():
            return SqsError("InvalidMessageContents", error.message)
        case errors.OptionInvalid() | errors.UsageError():
            return invalid(str(error))
        case _ if door.status_of_class(type(error)) == HTTPStatus.SERVICE_UNAVAILABLE:
            busy = "The gateway has too many requests to do. Send it again later."
            return SqsError(
                "ServiceUnavailable",
                busy if isinstance(error, Busy) else str(error),
                status=503,
                is_senders=False,
                is_retriable=door.may_come_again(error),
            )
        case _:
            return None


def _refused(error: errors.AccessError) -> SqsError:
    message = f"{error.message[:1].upper()}{error.message[1:]}."
    if isinstance(error, errors.AuthenticationFailed):
        name, status = UNKNOWN_CALLERS[error.reason]
        return SqsError(name, message, status=status)
    return SqsError("AccessDeniedException", message, status=403)
