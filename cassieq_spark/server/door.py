"""`Door` answers requests, and `Addresses` finds what is asked for; each API is a door.

`guards` has checked by then that the address has the method. `Call` is a request whose caller is
known; `in_turn` and `on_queue` decorate what does one.

Large answers are made and sent beside the event loop, which all others wait for. What shows a
message takes up to 10 ms for each MiB of its body: it is decoded, searched, hashed, and written as
JSON or XML. A request of a few bytes is answered with ten messages of a MiB.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Final, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from cassieq_spark import errors
from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.rights import Principal, Right
from cassieq_spark.model.shares import Holding
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery, Message
from cassieq_spark.server.backend import Backend, Busy
from cassieq_spark.server.guards import HOLDING, Refusal, no_room
from cassieq_spark.server.principal import Gate

REQUEST_ID: Final = "Cassieq-Request-Id"

_KEY: Final = "cassieq.request_id"

AT_ONCE_BYTES: Final = 65_536
"""Less than this takes the loop a millisecond, and a thread would cost as much."""

MESSAGE_WEIGHT: Final = 256
HEADER_WEIGHT: Final = 64
"""The number of bytes that take as long as the constant work for a message or a header."""

PART_BYTES: Final = 65_536
"""An answer is written in parts. A part waits until its client has read what came before it."""

_logger = get_logger("server")


T = TypeVar("T")


Run = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that clients can ask for.

    Attributes:
        name: Unique in its door.
        right: What its caller must be allowed on the queue that it names, or on some queue. To
            name a queue as the target of messages, a caller needs ``put`` on that one, too. None:
            nothing.
        run: Does it for a `Call` of its door.
        leases: Whether it leases messages: they are given back if its caller goes away.
        puts: Whether it lets messages be put into the queue: its caller needs ``put`` on it, too.
    """

    name: str
    right: Right | None
    run: Run
    leases: bool = field(default=False, kw_only=True)
    puts: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class AtAddress(Operation):
    """An operation that is asked for by method and path.

    Attributes:
        path: Below the prefix of the door. ``{queue}`` and others are parameters.
    """

    method: str
    path: str


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
    leased: list[Delivery] = field(default_factory=list)

    async def receive(self, most: int, **wanted: Any) -> list[Delivery]:
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
                return await _unless_gone(self.request, work, self.give_back)
            return await work
        except BaseException:
            self.give_back()
            raise

    async def made(self, make: Callable[[], T], messages: Iterable[Message]) -> T:
        """Return what ``make`` does of the messages.

        A large answer is made in a thread, one at a time, for one account after the other. More
        threads would make none sooner, as each holds the interpreter, and each wake-up of the loop
        would wait for all of them. It counts as held by its request from now on.

        Raises:
            Refusal: The requests of all connections hold too much already.
            Busy, StoreTimeout: Too many large answers wait.
        """
        size = sum(map(_size, messages))
        if size <= AT_ONCE_BYTES:
            return make()
        holding: Holding | None = self.request.scope.get(HOLDING)
        if holding is not None:
            holding.set(holding.size + size)
            if not holding.fits():
                raise no_room()
        return await self.backend.large.run(partial(asyncio.to_thread, make))

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


async def _unless_gone(
    request: Request, work: Awaitable[T], give_back: Callable[[], None]
) -> T | None:
    """Return the result; None if the client goes away first.

    Args:
        request: Its body has been read.
        give_back: Called if the client has gone: the work may have been done nevertheless.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return await task
        if not task.done():
            task.cancel()  # `Waiting.receive` gives back what comes too late
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody is there to be told
        give_back()
        return None
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Door:
    """An ASGI application that answers one request; a bug answers one request only."""

    addresses: Addresses[Any]

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
        return self.addresses.methods(path)

    def failure(self, error: Exception, scope: Scope) -> Response:
        """The answer that says why a request failed, or why a guard refused it."""
        raise NotImplementedError


def queue_of(request: Request, principal: Principal, operation: Operation) -> str:
    """The queue of the path, as the client knows it; empty if the path has none.

    Raises:
        AccessDenied: The caller may not do this on the queue, or on no queue at all.
    """
    own_name: str | None = request.path_params.get("queue")
    queue = "" if own_name is None else principal.full_name(own_name)
    for right in (operation.right, Right.PUT if operation.puts else None):
        if right is not None and queue:
            principal.require(right, queue)
        elif right is not None:
            principal.require_somewhere(right)
    return queue


_KINDS: Final[dict[int, tuple[type[Exception], ...]]] = {
    400: (errors.UsageError, errors.ReceiptInvalid),
    401: (errors.AuthenticationFailed,),
    403: (errors.AccessDenied,),
    404: (
        errors.AccountNotFound,
        errors.KeyNotFound,
        errors.QueueNotFound,
        errors.QueueDeleted,
        errors.ScheduleNotFound,
    ),
    409: (
        errors.TooManyKeys,
        errors.QueueExists,
        errors.QueueInUse,
        errors.ReceiptExpired,
        errors.ScheduleExists,
    ),
    500: (errors.RowCorrupt,),
    503: (Busy, errors.ClientClosed, errors.PutAmbiguous, errors.StoreError),
}
STATUS: Final = {kind: status for status, kinds in _KINDS.items() for kind in kinds}
"""The status of each class of error; a class that is not here has that of its nearest base. 503 are
errors of the cluster or the gateway, not of the request."""


def status_of_class(kind: type[Exception]) -> int:
    """The status of a class of errors; 500 if no request can have it."""
    return next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)


def may_come_again(error: Exception) -> bool:
    """Whether the same request may succeed later without anybody doing anything."""
    return isinstance(error, Busy) or (isinstance(error, CassieqError) and error.retriable)


def headers_of(scope: Scope, error: Exception | None = None) -> dict[str, str]:
    """The headers of every answer, and those that belong to an error."""
    found = {REQUEST_ID: request_id_of(scope)}
    if isinstance(error, Refusal):
        found |= error.headers
    if error is not None and may_come_again(error):
        found["Retry-After"] = "1"
    return found


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


A = TypeVar("A", bound=AtAddress)


class Addresses(Generic[A]):
    """The addresses below a prefix. The first one that matches a path has it."""

    def __init__(self, asked: Iterable[A], prefix: str, *, nothing: str) -> None:
        """Prepare.

        Args:
            asked: What the door has; no two have the same path and method.
            nothing: The answer to a client that asks for another path.
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


# --- large answers --------------------------------------------------------------------------------


class InParts(Response):
    """A response that is written in parts: the loop copies, or encrypts, a little at a time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if len(self.body) <= PART_BYTES:
            await super().__call__(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for at in range(0, len(self.body), PART_BYTES):
            part = bytes(self.body[at : at + PART_BYTES])
            has_more = at + PART_BYTES < len(self.body)
            await send({"type": "http.response.body", "body": part, "more_body": has_more})
            await asyncio.sleep(0)


def as_json(value: Mapping[str, Any]) -> bytes:
    """Write JSON, each entry of a list by itself: it holds up other threads for one message."""
    fields = (json.dumps(name).encode() + b": " + _field(one) for name, one in value.items())
    return b"{" + b", ".join(fields) + b"}"


def in_slices(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a text slice by slice, for the same reason; each byte is changed by itself."""
    found = bytearray()
    for at in range(0, len(text), PART_BYTES):
        found += change(text[at : at + PART_BYTES])
    return bytes(found)


def _field(value: Any) -> bytes:
    if not isinstance(value, list):
        return json.dumps(value).encode()
    return b"[" + b", ".join(json.dumps(one).encode() for one in value) + b"]"


def _size(message: Message) -> int:
    headers = sum(HEADER_WEIGHT + len(name) + len(text) for name, text in message.headers.items())
    return MESSAGE_WEIGHT + len(message.body) + headers
