"""Say who a request comes from: the one place where accounts will be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.model import rights

if TYPE_CHECKING:
    from starlette.requests import Request

    from cassieq_spark.model.rights import Right

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


EVERYBODY: Final = rights.Principal(account="", key_id="", grants=rights.EVERYTHING)
"""Everybody who reaches a gateway that checks no accounts."""


class Gate:
    """Checks who sends a request."""

    async def authenticate(
        self,
        request: Request,  # noqa: ARG002 - accounts will read it
        *,
        allows_unsigned: bool = False,  # noqa: ARG002 - ditto
    ) -> rights.Principal:
        """Return who has made a request."""
        return EVERYBODY

    async def confirm(self, principal: rights.Principal, right: Right, queue: str) -> None:
        """Return if a caller still has a right, after a long time."""


async def authenticate(request: Request) -> Principal:  # noqa: ARG001 - accounts will read it
    """Return who has made a request. Without accounts, that is this machine's own principal."""
    return LOCAL
