"""`Operation` is one thing that can be asked; `Call` is a request for it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.rights import Right
from cassieq_spark.server import door
from cassieq_spark.server.rest.fields import Nothing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from cassieq_spark.queue.message import Message

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"

PREFIX: Final = "/v1"
QUEUE: Final = "/queues/{queue}"
MESSAGES: Final = f"{QUEUE}/messages"
RECEIPT: Final = f"{MESSAGES}/{{receipt}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A body of bytes.

    Attributes:
        has_headers: Whether headers of the request are headers of a message.
    """

    doc: str
    has_headers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A result with its status.

    Attributes:
        body: A JSON object, or bytes; None: there is no body.
        media_type: Of the bytes.
    """

    body: dict[str, Any] | bytes | None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = RAW


async def _nothing(_: Call) -> Answer:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked: it decorates the function that does it.

    Attributes:
        name: Unique; the OpenAPI document calls it by this.
        path: Below ``/v1``. ``{queue}`` and ``{receipt}`` are parameters.
        right: What its caller must be allowed on the queue, or on some queue.
        answers: The model of each good status; None: it has no body.
        body: The model of a body of JSON, or `Raw`; None: there is no body.
        can_be_raw: Whether the caller may ask for the bytes of a message instead of JSON.
        errors: The statuses of its problems, besides those that every operation has.
        doc: A sentence that says what it does; further ones are details.
    """

    method: str
    name: str
    path: str
    right: Right
    answers: dict[int, type[BaseModel] | None]
    _: KW_ONLY
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | Raw | None = None
    can_be_raw: bool = False
    errors: tuple[int, ...] = (404,)
    doc: str = ""
    run: Callable[[Call], Awaitable[Answer]] = _nothing

    @property
    def is_body_needed(self) -> bool:
        """Whether an empty body is wrong: it lacks a field that the model needs."""
        return isinstance(self.body, type) and any(
            field.is_required() for field in self.body.model_fields.values()
        )

    def __call__(self, run: Callable[[Call], Awaitable[Answer]]) -> Operation:
        """The operation that a function does, whose docstring the OpenAPI document shows."""
        return replace(self, run=run, doc=" ".join((run.__doc__ or "").split()))


GET: Final = partial(Operation, "GET")
PUT: Final = partial(Operation, "PUT")
POST: Final = partial(Operation, "POST")
PATCH: Final = partial(Operation, "PATCH")
DELETE: Final = partial(Operation, "DELETE")


@dataclass(slots=True, kw_only=True)
class Call(door.Call):
    """One request.

    Attributes:
        queue: The queue of the path, as the client knows it; empty if the path has none.
        query: An instance of the operation's query.
        body: An instance of the operation's body, or bytes.
        is_raw: Whether the answer shall be the bytes of one message.
        leased: What was leased for this call.
    """

    operation: Operation
    queue: str
    query: Any
    body: Any
    is_raw: bool
    leased: list[Message] = field(default_factory=list)

    def give_back(self) -> None:
        """Give back what was leased: nobody will see it."""
        leased, self.leased = self.leased, []  # it happens in the background
        self.backend.give_back(self.queue, leased)

    def target(self, name: str) -> str:
        """A queue that messages shall go to, as the client knows it.

        Raises:
            OptionInvalid: It is a queue of another account.
            AccessDenied: The caller may not put messages there.
        """
        queue = self.principal.full_name(name)
        self.principal.require(Right.PUT, queue)
        return queue

    async def confirm(self) -> None:
        """Return if the caller may still do this, after a long time.

        Raises:
            AccessError: Its key was disabled, or has lost the right.
        """
        await self.gate.confirm(self.principal, self.operation.right, self.queue)
