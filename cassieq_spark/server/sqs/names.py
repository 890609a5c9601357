"""Names of queues on the wire: in queue URLs and in ARNs, with the number of their account.

The number is what SDKs expect where AWS has its account ids. It is made of the account's name and
stored nowhere, because nothing is looked up by it: it is only compared with the caller's own. So
two accounts that had the same number would still not reach each other's queues.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from cassieq_spark.server.sqs.errors import SqsError, invalid, no_queue

_ANY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_URL: Final = 2_048
"""A name has 200 characters, and the gateway may be reached by a long one."""
_ARN_PARTS: Final = 6
_DIGITS: Final = 12


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
