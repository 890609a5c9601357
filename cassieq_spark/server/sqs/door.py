"""`SqsDoor` reads a request, lets its action run, and writes the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Right
from cassieq_spark.server.departing import unless_gone
from cassieq_spark.server.guards import is_signed
from cassieq_spark.server.large import InParts
from cassieq_spark.server.limits import TooLong, headers_of
from cassieq_spark.server.measured import asked_of
from cassieq_spark.server.sqs import messages, moves, queues
from cassieq_spark.server.sqs.actions import ACTIONS, RIGHTS, checked
from cassieq_spark.server.sqs.call import Call
from cassieq_spark.server.sqs.errors import SqsError, translated
from cassieq_spark.server.sqs.protocol import JsonProtocol, QueryProtocol, protocol_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from cassieq_spark.model.rights import Principal
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.principal import Gate
    from cassieq_spark.server.rest.problems import Refusal

    Result = dict[str, Any] | Callable[[], dict[str, Any]]
    """The result of an action, or what makes it of large messages."""

NO_METHOD: Final = "MethodNotAllowed"
METHODS: Final = frozenset({"GET", "POST"})
REFUSALS: Final = {
    403: "AccessDeniedException",
    405: NO_METHOD,
    413: "RequestEntityTooLarge",
    503: "ServiceUnavailable",
}
"""The error for each status of a guard's refusal."""

_logger = get_logger("server")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request whose caller and protocol are known."""

    protocol: JsonProtocol | QueryProtocol
    principal: Principal
    request_id: str


class SqsDoor:
    """The ASGI endpoint of the SQS door."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self._backend = backend
        self._gate = gate
        self._moves = moves.Moves(backend)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        request_id = str(new_uuid())
        target = request.headers.get("x-amz-target")
        protocol = protocol_of(target)  # an error shall be in the caller's own protocol
        try:
            principal = await self._gate.authenticate(request, may=partial(_may, protocol.action))
            body = await request.body() if scope["method"] == "POST" else b""
            protocol = protocol_of(target, body, scope["query_string"].decode("latin-1"))
            self._check_method(scope, protocol.action)
            asked = _Asked(protocol=protocol, principal=principal, request_id=request_id)
            response = await self._answer(request, asked)
        except (asyncio.CancelledError, TooLong):
            raise
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - a bug must answer one request only
            response = _failure(protocol, error, request_id, scope)
        if response is not None:
            await response(scope, receive, send)

    def _check_method(self, scope: Scope, action: str) -> None:
        """Refuse a change by a request that any link or picture on a page can make.

        Raises:
            SqsError: It is one.
        """
        is_change = RIGHTS.get(action, Right.INFO) is not Right.INFO
        if (
            is_change
            and scope["method"] != "POST"
            and not self._gate.has_accounts
            and not is_signed(scope)
        ):
            raise SqsError(
                NO_METHOD,
                f"{action} by {scope['method']} has to be signed in its headers. Send it by POST.",
                status=405,
            )

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
            moves=self._moves,
            failed=noted.failed,
        )

        async def run() -> bytes:
            result = await HANDLERS[action](call)
            leased = [one for _, messages in call.leased for one in messages]

            def make() -> bytes:
                shown = result() if callable(result) else result
                return asked.protocol.answer(shown, asked.request_id)

            return await self._backend.answers.made(make, leased, request.scope)

        try:
            if action == "ReceiveMessage":
                body = await unless_gone(request, run(), call.give_back)
            else:
                body = await run()
            if body is None:
                return None
            return _response(asked.protocol, body, asked.request_id)
        except BaseException:
            call.give_back()
            raise


HANDLERS: Final[dict[str, Callable[[Call], Awaitable[Result]]]] = {
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


def refused(scope: Scope, refusal: Refusal) -> Response:
    """The answer to a request that a guard refuses, in the protocol of whoever sent it."""
    protocol = protocol_of(next(iter(headers_of(scope["headers"], b"x-amz-target")), None))
    status = refusal.status
    error = SqsError(
        REFUSALS[status],
        refusal.detail,
        status=status,
        is_senders=status != 503,  # noqa: PLR2004 - service unavailable
    )
    response = _failure(protocol, error, str(new_uuid()), scope)
    response.headers.update(refusal.headers)
    return response


def _may(action: str, principal: Principal) -> None:
    """Raise if a caller may do an action on no queue at all; the queue is in the body."""
    if action in RIGHTS:
        principal.require_somewhere(RIGHTS[action])


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
    if known.status == 405:  # noqa: PLR2004 - method not allowed
        response.headers["Allow"] = "POST"
    if known.status == 503:  # noqa: PLR2004 - service unavailable
        response.headers["Retry-After"] = "1"
    return response


def _response(protocol: JsonProtocol | QueryProtocol, body: bytes, request_id: str) -> Response:
    return InParts(body, media_type=protocol.content_type, headers={"x-amzn-RequestId": request_id})
