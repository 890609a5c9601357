"""Errors as Amazon SQS documents them, and which of ours become which."""

from __future__ import annotations

import re
from typing import Final

from cassieq_spark import errors
from cassieq_spark.server.backend import COME_AGAIN
from cassieq_spark.server.turns import Busy

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
        is_senders: Whether the caller has made a mistake; else trying again may help.
    """

    def __init__(
        self, name: str, message: str, *, status: int = 400, is_senders: bool = True
    ) -> None:
        super().__init__(message)
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


def within(parameter: str, value: int, low: int, high: int) -> int:
    """Return a number if it is within its range.

    Raises:
        SqsError: It is not.
    """
    if not low <= value <= high:
        raise invalid(
            f"Value {value} for parameter {parameter} is invalid. Reason: Must be between {low} "
            f"and {high}, if provided."
        )
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


def _unavailable(message: str) -> SqsError:
    return SqsError("ServiceUnavailable", message, status=503, is_senders=False)


def translated(error: Exception) -> SqsError | None:  # noqa: PLR0911 - a table
    """The SQS error for an error of the client; None: it is none that a request can have."""
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
            return expired()
        case errors.BodyInvalid():
            return SqsError("InvalidMessageContents", error.message)
        case errors.OptionInvalid() | errors.UsageError():
            return invalid(str(error))
        case Busy():
            return _unavailable("The gateway has too many requests to do. Send it again later.")
        case errors.CassieqError() if isinstance(error, COME_AGAIN):
            return _unavailable(str(error))
        case _:
            return None


def expired() -> SqsError:
    """The error for a receipt whose delivery has ended, as AWS words it for its FIFO queues."""
    return invalid(
        "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )


def _refused(error: errors.AccessError) -> SqsError:
    message = f"{error.message[:1].upper()}{error.message[1:]}."
    if isinstance(error, errors.AuthenticationFailed):
        name, status = UNKNOWN_CALLERS[error.reason]
        return SqsError(name, message, status=status)
    return SqsError("AccessDeniedException", message, status=403)
