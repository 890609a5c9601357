"""`SqsDoor` reads a request, lets its action run, and writes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Scope

from cassieq_spark.model.rights import Principal, Right
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.door import Door, InParts, note_fault, request_id_of
from cassieq_spark.server.guards import Refusal, asked_of, is_signed
from cassieq_spark.server.operations import ACTIONS, Action
from cassieq_spark.server.principal import Gate
from cassieq_spark.server.sqs.call import Call, SqsError, translated
from cassieq_spark.server.sqs.protocol import JsonProtocol, QueryProtocol, checked, protocol_of

NO_METHOD: Final = "MethodNotAllowed"
METHODS: Final = frozenset({"GET", "POST"})
REFUSALS: Final = {
    403: "AccessDeniedException",
    405: NO_METHOD,
    413: "RequestEntityTooLarge",
    503: "ServiceUnavailable",
}
"""The error for each status of a guard's refusal."""

QUEUE_PATH: Final = "/{account:str}/{queue:str}"
_QUEUE_PATH: Final = compile_path(QUEUE_PATH)[0]
_PROTOCOL: Final = "cassieq.protocol"


class SqsDoor(Door):
    """The ASGI endpoint of the SQS door."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        super().__init__(backend, gate)
        self._beside: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response | None:
        """Do what is asked; None: the client has gone, and what was leased is given back."""
        scope = request.scope
        target = request.headers.get("x-amz-target")
        # An error shall be in the caller's own protocol, whoever it is.
        protocol = scope[_PROTOCOL] = protocol_of(target)
        principal = await self._gate.authenticate(request, may=partial(_may, protocol.action))
        body = await request.body() if scope["method"] == "POST" else b""
        protocol = protocol_of(target, body, scope["query_string"].decode("latin-1"))
        scope[_PROTOCOL] = protocol
        action = self._asked(scope, protocol.action)
        noted = asked_of(scope)
        noted.operation = action.name
        given = protocol.parameters(action.parameters)
        if isinstance(protocol, QueryProtocol) and scope["path"] != "/":
            given.setdefault("QueueUrl", request.url.path)  # as AWS's documents write a form
        call = Call(
            operation=action,
            parameters=checked(action.parameters, given, action=action.name),
            principal=principal,
            gate=self._gate,
            request=request,
            backend=self._backend,
            beside=self._run_beside,
            failed=noted.failed,
        )
        call.take_queue()

        async def run() -> Response:
            result = await action.run(call)

            def make() -> bytes:
                shown = result() if callable(result) else result
                return protocol.answer(shown, request_id_of(scope))

            made = await call.made(make, call.leased)
            return _response(protocol, made, scope)

        return await call.answered(run())

    def methods(self, path: str) -> Iterable[str] | None:
        """The methods of an address."""
        return METHODS if path == "/" or _QUEUE_PATH.match(path) else None

    def failure(self, error: Exception, scope: Scope) -> Response:
        """The error in the protocol of whoever sent the request."""
        found = scope.get(_PROTOCOL) or protocol_of(Headers(scope=scope).get("x-amz-target"))
        protocol: JsonProtocol | QueryProtocol = found
        known = _refused(error) if isinstance(error, Refusal) else translated(error)
        if known is None:
            note_fault(error, scope, protocol.action)
            known = SqsError(
                "InternalFailure",
                f"The gateway could not do this. Its log says why: request {request_id_of(scope)}.",
                status=500,
                is_senders=False,
            )
        asked_of(scope).code = known.name
        response = _response(protocol, protocol.failure(known, request_id_of(scope)), scope)
        response.status_code = known.status
        fault = "Sender" if known.is_senders else "Receiver"
        response.headers["x-amzn-query-error"] = f"{known.query_code};{fault}"
        if known.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "POST"
        if known.is_retriable:
            response.headers["Retry-After"] = "1"
        if isinstance(error, Refusal):
            response.headers.update(error.headers)
        return response

    def _asked(self, scope: Scope, name: str) -> Action:
        """The action of that name.

        Raises:
            SqsError: There is none, or it is a change by a request that any link or picture on a
                page can make.
        """
        action = ACTIONS.get(name)
        if action is None:
            raise SqsError(
                "UnknownOperationException",
                f"The action {name[:100]!r} is not valid for this endpoint.",
            )
        if (
            action.right is not Right.INFO
            and scope["method"] != "POST"
            and not self._gate.has_accounts
            and not is_signed(scope)
        ):
            raise SqsError(
                NO_METHOD,
                f"{name} by {scope['method']} has to be signed in its headers. Send it by POST.",
                status=405,
            )
        return action

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def _may(name: str, principal: Principal) -> None:
    """Raise if a caller may do an action on no queue at all; the queue is in the body."""
    if name in ACTIONS:
        principal.require_somewhere(ACTIONS[name].right)


def _refused(refusal: Refusal) -> SqsError:
    status = refusal.status
    is_senders = status != HTTPStatus.SERVICE_UNAVAILABLE
    return SqsError(REFUSALS[status], refusal.detail, status=status, is_senders=is_senders)


def _response(protocol: JsonProtocol | QueryProtocol, body: bytes, scope: Scope) -> Response:
    headers = {"x-amzn-RequestId": request_id_of(scope)}
    return InParts(body, media_type=protocol.content_type, headers=headers)
