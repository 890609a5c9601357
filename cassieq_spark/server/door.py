"""`Door` answers requests, and `Addresses` finds what is asked for; each API is a door.

`guards` has checked by then that the address has the method. `Call` is a request whose caller is
known; `in_turn` and `on_queue` decorate what does one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.routing import compile_path

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import QueueName
from cassieq_spark.queue.find import open_lane
from cassieq_spark.server.guards import Refusal
from cassieq_spark.server.large import unless_gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.model.rights import Principal, Right
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.operations import AtAddress, Operation
    from cassieq_spark.server.principal import Gate

REQUEST_ID: Final = "Cassieq-Request-Id"

_KEY: Final = "cassieq.request_id"

_logger = get_logger("server")


T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Call:
    """A request whose caller is known; each door has more to say of its own.

    Attributes:
        operation: What is asked.
        queue: The queue that it names, as the client knows it; empty if it names none. The caller
            has the operation's right on it.
        leased: What was leased for it.
    """

    operation: Operation
    request: Request
    gate: Gate
    principal: Principal
    backend: Backend
    queue: str = ""
    leased: list[Message] = field(default_factory=list)

    async def receive(self, most: int, **wanted: Any) -> list[Message]:
        """Lease messages, as `Backend.receive` does, if the caller still may when they are there.

        Raises:
            AccessError: Its key was disabled, or has lost the right.
        """
        self.leased = await self.backend.receive(self.queue, most, **wanted)
        right = self.operation.right
        if self.leased and right is not None:
            await self.gate.confirm(self.principal, right, self.queue)
        return self.leased

    async def answered(self, work: Awaitable[T]) -> T | None:
        """Return the result of what does this; None: the client has gone.

        What was leased is given back if nobody will see it.
        """
        try:
            if self.operation.leases:
                return await unless_gone(self.request, work, self.give_back)
            return await work
        except BaseException:
            self.give_back()
            raise

    async def lane(self) -> Lane:
        """The queue that it names, opened in the engine's event loop.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return await open_lane(self.backend.store, QueueName(self.queue))

    def give_back(self) -> None:
        """Give back what was leased; it happens in the background."""
        leased, self.leased = self.leased, []
        self.backend.give_back(self.queue, leased)


C = TypeVar("C", bound=Call)


def in_turn(work: Callable[[C], Awaitable[T]]) -> Callable[[C], Awaitable[T]]:
    """Do something for a call when it is its account's turn."""

    @wraps(work)
    async def run(call: C) -> T:
        return await call.backend.run(partial(work, call))

    return run


def on_queue(work: Callable[[C, AsyncQueue], Awaitable[T]]) -> Callable[[C], Awaitable[T]]:
    """Do something with the queue of a call when it is its account's turn."""

    @wraps(work)
    async def run(call: C) -> T:
        return await call.backend.on_queue(call.queue, partial(work, call))

    return run


class Door:
    """An ASGI application that answers one request; a bug answers one request only."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self._backend = backend
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self.answer(Request(scope, receive))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - see above
            response = self.failure(error, scope)
        if response is not None:
            await response(scope, receive, send)

    async def answer(self, request: Request) -> Response | None:
        """Do what is asked; None: the client has gone."""
        raise NotImplementedError

    def methods(self, path: str) -> Iterable[str] | None:
        """The methods of an address, GET for HEAD, too; None: there is nothing."""
        raise NotImplementedError

    def failure(self, error: Exception, scope: Scope) -> Response:
        """The answer that says why a request failed, or why a guard refused it."""
        raise NotImplementedError


def queue_of(request: Request, principal: Principal, right: Right | None) -> str:
    """The queue of the path, as the client knows it; empty if the path has none.

    Raises:
        AccessDenied: The caller may not do this on the queue, or on no queue at all.
    """
    own_name: str | None = request.path_params.get("queue")
    queue = "" if own_name is None else principal.full_name(own_name)
    if right is not None and queue:
        principal.require(right, queue)
    elif right is not None:
        principal.require_somewhere(right)
    return queue


def request_id_of(scope: Scope) -> str:
    """The id of a request: its answer has it, and so has what the log says of it."""
    if _KEY not in scope:
        scope[_KEY] = str(new_uuid())
    return str(scope[_KEY])


def note_fault(error: Exception, scope: Scope, action: str) -> None:
    """Log an error that is not the fault of the request."""
    code = error.code if isinstance(error, CassieqError) else type(error).__name__
    event(_logger, "request_failed", request=request_id_of(scope), action=action, error=code)
    _logger.debug("request %s", request_id_of(scope), exc_info=error)


A = TypeVar("A", bound="AtAddress")


class Addresses(Generic[A]):
    """The addresses below a prefix. The first one that matches a path has it."""

    def __init__(self, asked: Iterable[A], prefix: str, *, nothing: str) -> None:
        """Prepare.

        Args:
            asked: What the door has; no two have the same path and method.
            nothing: What a client is told who asks for another path.
        """
        self._nothing = nothing
        by_path: dict[str, dict[str, A]] = {}
        for one in asked:
            by_path.setdefault(prefix + one.path, {})[one.method] = one
        self._known = [(compile_path(path)[0], methods) for path, methods in by_path.items()]

    def methods(self, path: str) -> Iterable[str] | None:
        """The methods of a path, GET for HEAD, too; None: there is no such path."""
        return next((methods for form, methods in self._known if form.fullmatch(path)), None)

    def find(self, scope: Scope) -> A:
        """Return what a request asks for; its scope gets the parameters of the path.

        Raises:
            Refusal: There is nothing at this address.
        """
        for form, methods in self._known:
            if found := form.fullmatch(scope["path"]):
                scope["path_params"] = found.groupdict()
                return methods["GET" if scope["method"] == "HEAD" else scope["method"]]
        raise Refusal(404, self._nothing)
