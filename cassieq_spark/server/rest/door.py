"""`RestDoor` reads a request, lets its operation run, and writes the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from cassieq_spark.server.door import (
    REQUEST_ID,
    Addresses,
    Door,
    InParts,
    headers_of,
    queue_of,
    request_id_of,
)
from cassieq_spark.server.guards import REST, Refusal, asked_of
from cassieq_spark.server.operations import OPERATIONS, RestOperation
from cassieq_spark.server.rest.call import (
    JSON,
    MEDIA_TYPE,
    RAW,
    Answer,
    Call,
    failed_in,
    from_json,
    from_query,
    noted,
)


class RestDoor(Door):
    """The ASGI application of the REST door."""

    addresses = Addresses(OPERATIONS, REST, nothing="Look at /docs for what there is.")

    async def answer(self, request: Request) -> Response | None:
        """Do what is asked; None: the client has gone."""
        operation = self.addresses.find(request.scope)
        asked_of(request.scope).operation = operation.name
        principal = await self._gate.authenticate(
            request,
            may=lambda principal: queue_of(request, principal, operation.right),
            allows_unsigned=isinstance(operation.body, str),
        )
        body = await request.body()
        call = Call(
            operation=operation,
            gate=self._gate,
            request=request,
            principal=principal,
            backend=self._backend,
            queue=queue_of(request, principal, operation.right),
            query=from_query(operation.query, request.scope["query_string"]),
            body=_read(operation, request.headers, body),
            is_raw=_wants_raw(operation, request.headers),
        )

        async def run() -> Response:
            found = await operation.run(call)
            answer = found if isinstance(found, Answer) else Answer(found)
            asked_of(request.scope).failed += failed_in(answer.body)
            return _response(answer, next(iter(operation.answers)), request_id_of(request.scope))

        return await call.answered(run())

    def failure(self, error: Exception, scope: Scope) -> Response:
        """The error as a problem."""
        found = noted(error, scope, "rest")
        headers = headers_of(error) | {REQUEST_ID: request_id_of(scope)}
        if found["status"] == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "AWS4-HMAC-SHA256, Bearer"
        return Response(
            json.dumps(found), status_code=found["status"], media_type=MEDIA_TYPE, headers=headers
        )


def _read(operation: RestOperation, headers: Mapping[str, str], body: bytes) -> Any:
    """The body of a request, as the operation has it."""
    wanted = operation.body
    if wanted is None:
        if body:
            raise Refusal(415, "This request has no body. Leave it out")
        return None
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    expected = RAW if isinstance(wanted, str) else JSON
    is_empty = not body and not operation.is_body_needed
    if media_type not in ("", expected) and not is_empty:
        raise Refusal(
            415,
            f"The body has the media type {media_type[:100]!r}, allowed: {expected}. Send the "
            f"header Content-Type: {expected}",
        )
    if isinstance(wanted, str):
        return body
    return from_json(wanted, b"{}" if is_empty else body)


def _wants_raw(operation: RestOperation, headers: Mapping[str, str]) -> bool:
    """Whether the caller asks for bytes rather than JSON."""
    accepted = _accepted(headers.get("accept", "*/*"))
    if operation.leases and RAW in accepted:
        return True
    if not accepted & {JSON, "application/*", "*/*"}:
        offered = f"{JSON} or {RAW}" if operation.leases else JSON
        raise Refusal(406, f"The answer is {offered}. Send the header Accept: {JSON}")
    return False


def _accepted(header: str) -> set[str]:
    found = set()
    for one in header.lower().split(","):
        media_type, *parameters = (part.strip() for part in one.split(";"))
        if media_type and "q=0" not in [part.replace(" ", "") for part in parameters]:
            found.add(media_type)
    return found or {"*/*"}


def _response(answer: Answer, usual: int, request_id: str) -> Response:
    headers, status = {**answer.headers, REQUEST_ID: request_id}, answer.status or usual
    if answer.body is None:
        return Response(status_code=status, headers=headers)
    made, media_type = answer.body, answer.media_type
    if not isinstance(made, bytes):
        made, media_type = json.dumps(made).encode(), JSON
    return InParts(made, status_code=status, headers=headers, media_type=media_type)
