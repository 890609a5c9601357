"""`Call` is one action that was asked for, with what it needs to run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from cassieq_spark.server.sqs.errors import SqsError, invalid, no_queue

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.principal import Principal
    from cassieq_spark.server.sending import Sending
    from cassieq_spark.server.sqs.moves import Moves
    from cassieq_spark.server.waiting import Waiting

_ANY_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_ARN_PARTS: Final = 6


@dataclass(slots=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        base_url: The gateway as the caller has reached it; queue URLs begin with it.
        path: Of the request: the query protocol names the queue there.
        leased: What was leased for this call, with its queue.
    """

    action: str
    parameters: dict[str, Any]
    principal: Principal
    base_url: str
    path: str
    region: str
    backend: Backend
    waiting: Waiting
    sending: Sending
    moves: Moves
    leased: list[tuple[str, list[Message]]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """A parameter; None if it was not given."""
        return self.parameters.get(name)

    def queue(self, right: str) -> str:
        """The name of the queue that the call is about, if its caller has this right on it.

        Only the path of its URL counts: behind a proxy, gateways have many addresses.

        Raises:
            SqsError: It cannot be the URL of a queue here, or the caller lacks the right.
        """
        url = self.parameters["QueueUrl"]
        try:
            account, _, name = unquote(urlsplit(url).path).strip("/").rpartition("/")
        except ValueError:
            account, name = "", ""
        if not _ANY_NAME.fullmatch(name):
            raise SqsError("InvalidAddress", f"The address {url[:300]!r} is not valid for a queue.")
        if account.rpartition("/")[2] != self.principal.account:
            raise no_queue()
        return self.allowed(right, name)

    def queue_of_arn(self, parameter: str, right: str) -> str:
        """The name of the queue that an ARN names.

        Raises:
            SqsError: It is not an ARN of a queue.
        """
        return self.allowed(right, name_of_arn(self.parameters[parameter]))

    def allowed(self, right: str, name: str | None) -> str:
        """The name again, if the caller has this right on the queue; None: on queues in general.

        Raises:
            SqsError: It has not.
        """
        if not self.principal.may(right, name):
            raise SqsError(
                "AccessDenied", f"This key has no right {right!r} on the queue.", status=403
            )
        return name or ""

    def url(self, name: str) -> str:
        """The URL of a queue."""
        return f"{self.base_url}/{self.principal.account}/{name}"

    def arn(self, name: str) -> str:
        """The ARN of a queue."""
        return f"arn:aws:sqs:{self.region}:{self.principal.account}:{name}"

    def give_back(self) -> None:
        """Give back what was leased: nobody will see it."""
        for queue, messages in self.leased:
            self.waiting.give_back(queue, messages)
        self.leased.clear()


def name_of_arn(arn: str) -> str:
    """The name of the queue that an ARN names: only its last part counts.

    Raises:
        SqsError: It is not an ARN of a queue.
    """
    parts = arn.split(":")
    is_arn = len(parts) == _ARN_PARTS and parts[0] == "arn" and parts[2] == "sqs"
    if not is_arn or not _ANY_NAME.fullmatch(parts[-1]):
        raise invalid(f"Value {arn[:300]!r} is not the ARN of a queue.")
    return parts[-1]
