"""Say who a request comes from: the one place where accounts will be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.requests import Request

LOCAL_ACCOUNT: Final = "000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody who makes requests.

    Attributes:
        account: The account part of queue URLs and ARNs, 12 digits.
        sender_id: The text that others see as the sender.
    """

    account: str
    sender_id: str

    def may(self, right: str, queue: str | None) -> bool:  # noqa: ARG002 - see below
        """Whether it has a right on a queue; None: on queues in general.

        Everybody who reaches a gateway without accounts has all rights.
        """
        return True


LOCAL: Final = Principal(account=LOCAL_ACCOUNT, sender_id="local")


async def authenticate(request: Request) -> Principal:  # noqa: ARG001 - accounts will read it
    """Return who has made a request. Without accounts, that is this machine's own principal."""
    return LOCAL
