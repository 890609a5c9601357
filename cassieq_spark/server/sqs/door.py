"""`SqsDoor` reads a request, lets its action run, and writes the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.server.departing import unless_gone
from cassieq_spark.server.limits import TooLong
from cassieq_spark.server.measured import asked_of
from cassieq_spark.server.sqs import messages, moves, queues
from cassieq_spark.server.sqs.actions import ACTIONS, checked
from cassieq_spark.server.sqs.call import Call
from cassieq_spark.server.sqs.errors import SqsError, translated
from cassieq_spark.server.sqs.protocol import JsonProtocol, QueryProtocol, protocol_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from cassieq_spark.aio.waiting import Waiting
    from cassieq_spark.model.rights import Principal
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.deleting import Deleting
    from cassieq_spark.server.principal import Gate
    from cassieq_spark.server.sending import Sending

_logger = get_logger("server")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request whose caller and protocol are known."""

    protocol: JsonProtocol | QueryProtocol
    principal: Principal
    request_id: str


class SqsDoor:
    """The ASGI endpoint of the SQS door."""

    def __init__(
        self, backend: Backend, waiting: Waiting, sending: Sending, deleting: Deleting, gate: Gate
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._waiting = waiting
        self._sending = sending
        self._deleting = deleting
        self._moves = moves.Moves(backend)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        request_id = str(new_uuid())
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        protocol: JsonProtocol | QueryProtocol = QueryProtocol({})
        try:
            target = request.headers.get("x-amz-target")
            if target is not None:
                protocol = JsonProtocol("", b"")  # an error shall be in the caller's own protocol
            protocol = protocol_of(target, body, scope["query_string"].decode("latin-1"))
            principal = await self._gate.authenticate(request)
            asked = _Asked(protocol=protocol, principal=principal, request_id=request_id)
            response = await self._answer(request, asked)
        except (asyncio.CancelledError, TooLong):
            raise
        except Exception as error:  # noqa: BLE001 - a bug must answer one request only
            response = _failure(protocol, error, request_id, scope)
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, request: Request, asked: _Asked) -> Response | None:
        """The response; None: the client has gone, and what was leased for it is given back."""
        action = asked.protocol.action
        wanted = ACTIONS.get(action)
        if wanted is None:
            raise SqsError(
                "UnknownOperationException",
                f"The action {action[:100]!r} is not valid for this endpoint.",
            )
        noted = asked_of(request.scope)
        noted.operation = action
        given = asked.protocol.parameters()
        if isinstance(asked.protocol, QueryProtocol) and request.path_params:
            given.setdefault("QueueUrl", request.url.path)  # as AWS's documents write a form
        call = Call(
            action=action,
            parameters=checked(wanted, given, action=action),
            principal=asked.principal,
            gate=self._gate,
            request=request,
            backend=self._backend,
            waiting=self._waiting,
            sending=self._sending,
            deleting=self._deleting,
            moves=self._moves,
            failed=noted.failed,
        )
        run = HANDLERS[action]
        try:
            if action == "ReceiveMessage":
                result = await unless_gone(request, run(call), call.give_back)
                if result is None:
                    return None
            else:
                result = await run(call)
            body = asked.protocol.answer(result, asked.request_id)
            return _response(asked.protocol, body, asked.request_id)
        except BaseException:
            call.give_back()
            raise


HANDLERS: Final[dict[str, Callable[[Call], Awaitable[dict[str, Any]]]]] = {
    "AddPermission": queues.no_permissions,
    "CancelMessageMoveTask": moves.cancel,
    "ChangeMessageVisibility": messages.change_visibility,
    "ChangeMessageVisibilityBatch": messages.change_visibility_batch,
    "CreateQueue": queues.create,
    "DeleteMessage": messages.delete,
    "DeleteMessageBatch": messages.delete_batch,
    "DeleteQueue": queues.delete,
    "GetQueueAttributes": queues.get_attributes,
    "GetQueueUrl": queues.get_url,
    "ListDeadLetterSourceQueues": queues.list_sources,
    "ListMessageMoveTasks": moves.list_tasks,
    "ListQueueTags": queues.list_tags,
    "ListQueues": queues.list_queues,
    "PurgeQueue": queues.purge,
    "ReceiveMessage": messages.receive,
    "RemovePermission": queues.no_permissions,
    "SendMessage": messages.send,
    "SendMessageBatch": messages.send_batch,
    "SetQueueAttributes": queues.set_attributes,
    "StartMessageMoveTask": moves.start,
    "TagQueue": queues.tag,
    "UntagQueue": queues.untag,
}


def no_body(scope: Scope, status: int, detail: str) -> Response:
    """The answer to a request whose body is not read, in the protocol of whoever sent it."""
    is_json = any(name == b"x-amz-target" for name, _ in scope["headers"])
    protocol = JsonProtocol("", b"") if is_json else QueryProtocol({})
    is_senders = status == 413  # noqa: PLR2004 - content too large
    code = "RequestEntityTooLarge" if is_senders else "ServiceUnavailable"
    error = SqsError(code, detail, status=status, is_senders=is_senders)
    return _failure(protocol, error, str(new_uuid()), scope)


def _failure(
    protocol: JsonProtocol | QueryProtocol, error: Exception, request_id: str, scope: Scope
) -> Response:
    known = translated(error)
    if known is None:
        code = error.code if isinstance(error, CassieqError) else type(error).__name__
        event(_logger, "request_failed", request=request_id, action=protocol.action, error=code)
        _logger.debug("request %s", request_id, exc_info=error)
        known = SqsError(
            "InternalFailure",
            f"The gateway could not do this. Its log says why: request {request_id}.",
            status=500,
            is_senders=False,
        )
    asked_of(scope).code = known.name
    response = _response(protocol, protocol.failure(known, request_id), request_id)
    response.status_code = known.status
    fault = "Sender" if known.is_senders else "Receiver"
    response.headers["x-amzn-query-error"] = f"{known.query_code};{fault}"
    if known.status == 401:  # noqa: PLR2004 - unauthorized
        response.headers["WWW-Authenticate"] = "AWS4-HMAC-SHA256, Bearer"
    if known.status == 503:  # noqa: PLR2004 - service unavailable
        response.headers["Retry-After"] = "1"
    return response


def _response(protocol: JsonProtocol | QueryProtocol, body: bytes, request_id: str) -> Response:
    return Response(
        body, media_type=protocol.content_type, headers={"x-amzn-RequestId": request_id}
    )
