"""`Call` is one action that was asked for, with what it needs to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cassieq_spark.server.sqs.actions import RIGHTS
from cassieq_spark.server.sqs.errors import no_resource
from cassieq_spark.server.sqs.names import name_of_arn, name_of_url, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from cassieq_spark.model.rights import Principal, Right
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.principal import Gate
    from cassieq_spark.server.sqs.moves import Moves


@dataclass(slots=True, kw_only=True)
class Call:
    """One call.

    Attributes:
        leased: What was leased for this call, with its queue.
        failed: Code and status of each entry of its batch that failed.
    """

    action: str
    parameters: dict[str, Any]
    principal: Principal
    gate: Gate
    request: Request
    backend: Backend
    moves: Moves
    leased: list[tuple[str, list[Message]]] = field(default_factory=list)
    failed: list[tuple[str, int]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """A parameter; None if it was not given."""
        return self.parameters.get(name)

    @property
    def number(self) -> str:
        """The 12 digits of the caller's account."""
        return number_of(self.principal.account)

    def queue(self) -> str:
        """The full name of the queue that the call is about, if its caller may do this to it.

        Raises:
            SqsError: It cannot be the URL of a queue of the caller's account.
            AccessDenied: The caller lacks the right.
        """
        return self.allowed(name_of_url(self.parameters["QueueUrl"], self.number))

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
            right: Default: what `RIGHTS` says about the action.

        Raises:
            AccessDenied: It has not.
        """
        full_name = self.principal.full_name(name)
        self.principal.require(right or RIGHTS[self.action], full_name)
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
        right = RIGHTS[self.action]
        self.principal.require_somewhere(right)
        return [one for one in full_names if self.principal.may(right, one)]

    async def confirm(self, full_name: str) -> None:
        """Return if the caller may still do this.

        Raises:
            AuthenticationFailed, AccessDenied: It may not.
        """
        await self.gate.confirm(self.principal, RIGHTS[self.action], full_name)

    def give_back(self) -> None:
        """Give back what was leased: nobody will see it."""
        for queue, messages in self.leased:
            self.backend.give_back(queue, messages)
        self.leased.clear()

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
