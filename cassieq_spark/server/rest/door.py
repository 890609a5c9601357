"""`RestDoor` reads a request, lets its operation run, and writes the answer.

What it does is described by an OpenAPI 3.1 document, which is made of its list of operations.
`/docs` shows it to people, without a script or any other file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

import cassieq_spark
from cassieq_spark import errors
from cassieq_spark.accounts.keys import KEY_ID
from cassieq_spark.errors import CassieqError
from cassieq_spark.options import values
from cassieq_spark.server.door import (
    Addresses,
    Door,
    InParts,
    headers_of,
    queue_of,
    status_of_class,
)
from cassieq_spark.server.guards import REST, Refusal, asked_of
from cassieq_spark.server.operations import OPERATIONS, RestOperation
from cassieq_spark.server.rest import answers
from cassieq_spark.server.rest import call as rest
from cassieq_spark.server.rest.call import JSON, RAW
from cassieq_spark.server.ui.page import text_of


class RestDoor(Door):
    """The ASGI application of the REST door."""

    addresses = Addresses(OPERATIONS, REST, nothing="Look at /docs for what there is.")

    async def answer(self, request: Request) -> Response | None:
        """Do what is asked; None: the client has gone."""
        operation = self.addresses.find(request.scope)
        asked_of(request.scope).operation = operation.name
        principal = await self._gate.authenticate(
            request,
            may=lambda principal: queue_of(request, principal, operation),
            allows_unsigned=isinstance(operation.body, str),
        )
        body = await request.body()
        call = rest.Call(
            operation=operation,
            gate=self._gate,
            request=request,
            principal=principal,
            backend=self._backend,
            queue=queue_of(request, principal, operation),
            query=rest.from_query(operation.query, request.scope["query_string"]),
            body=_read(operation, request.headers, body),
            is_raw=_wants_raw(operation, request.headers),
        )

        async def run() -> Response:
            found = await operation.run(call)
            answer = found if isinstance(found, rest.Answer) else rest.Answer(found)
            asked_of(request.scope).failed += rest.failed_in(answer.body)
            return _response(answer, next(iter(operation.answers)), headers_of(request.scope))

        return await call.answered(run())

    def failure(self, error: Exception, scope: Scope) -> Response:
        """The error as a problem."""
        found = rest.noted(error, scope, "rest")
        headers = headers_of(scope, error)
        if found["status"] == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "AWS4-HMAC-SHA256, Bearer"
        return Response(
            json.dumps(found),
            status_code=found["status"],
            media_type=rest.MEDIA_TYPE,
            headers=headers,
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
    return rest.from_json(wanted, b"{}" if is_empty else body)


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


def _response(answer: rest.Answer, usual: int, headers: dict[str, str]) -> Response:
    headers, status = {**answer.headers, **headers}, answer.status or usual
    if answer.body is None:
        return Response(status_code=status, headers=headers)
    made, media_type = answer.body, answer.media_type
    if not isinstance(made, bytes):
        made, media_type = json.dumps(made).encode(), JSON
    return InParts(made, status_code=status, headers=headers, media_type=media_type)


# --- the OpenAPI document -------------------------------------------------------------------------

EVERYWHERE: Final = (400, 401, 403, 406, 413, 415, 500, 503)
"""Statuses of problems that every operation may answer with."""

_SCHEMAS: Final = "#/components/schemas/"

_DOC: Final = """\
Queues over HTTP. Every promise is the client's: a message that was put is delivered until it is
acked. Bodies of messages are bytes. An error is a problem (RFC 9457) with a stable code; the header
Retry-After says that the same request may succeed later.
"""

_PATH_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "queue": {"description": "The name of a queue.", "schema": dict(values.queue_name().schema)},
    "schedule": {
        "description": "The name of a schedule.",
        "schema": dict(values.queue_name().schema),
    },
    "key": {
        "description": "The id of a key of the account.",
        "schema": {"type": "string", "pattern": f"^{KEY_ID.pattern}$"},
    },
    "receipt": {
        "description": "The receipt that a lease of the message has returned.",
        "schema": {"type": "string", "minLength": 1},
    },
}


POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@cache
def document() -> dict[str, Any]:
    """The document, as a JSON object."""
    schemas = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(REST + one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cassieq_spark",
            "version": cassieq_spark.__version__,
            "description": _DOC,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schemas() -> dict[str, Any]:
    wanted: dict[type[BaseModel], JsonSchemaMode] = {answers.Problem: "serialization"}
    for one in OPERATIONS:
        wanted[one.query] = "validation"
        if isinstance(one.body, type):
            wanted[one.body] = "validation"
        wanted |= {model: "serialization" for model in one.answers.values() if model is not None}
    _, found = models_json_schema(list(wanted.items()), ref_template=f"{_SCHEMAS}{{model}}")
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def _operation(one: RestOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    doc = " ".join((one.run.__doc__ or "").split())
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": doc.partition(".")[0],
        "description": f"{doc} It needs the right `{one.right.value}`{' and `put`' * one.puts}.",
        "parameters": _parameters(one, schemas),
        "responses": _responses(one),
    }
    if one.body is not None:
        found["requestBody"] = _body(one.body, is_required=one.is_body_needed)
    return found


def _parameters(one: RestOperation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, **more}
        for name, more in _PATH_PARAMETERS.items()
        if f"{{{name}}}" in one.path
    ]
    for name, schema in schemas[one.query.__name__].get("properties", {}).items():
        own = {key: value for key, value in schema.items() if key not in ("title", "description")}
        inner = [one for one in own.pop("anyOf", []) if one.get("type") != "null"]
        parameter = {"name": name, "in": "query", "schema": {**own, **(inner or [{}])[0]}}
        if parameter["schema"].get("default", "") is None:
            del parameter["schema"]["default"]
        if description := schema.get("description") or (inner or [{}])[0].get("description"):
            parameter["description"] = description
        found.append(parameter)
    return found


def _body(body: type[BaseModel] | str, *, is_required: bool) -> dict[str, Any]:
    if isinstance(body, str):
        return {"description": body, "required": is_required, "content": {RAW: {}}}
    return {"required": is_required, "content": {JSON: {"schema": _ref(body)}}}


def _responses(one: RestOperation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, model in one.answers.items():
        found[str(status)] = {"description": HTTPStatus(status).phrase}
        if model is not None:
            content: dict[str, Any] = {JSON: {"schema": _ref(model)}}
            if one.leases:
                content[RAW] = {}
            found[str(status)]["content"] = content
    for status in sorted({*EVERYWHERE, *one.errors}):
        found[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {rest.MEDIA_TYPE: {"schema": _ref(answers.Problem)}},
        }
    return found


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{model.__name__}"}


@cache
def described() -> bytes:
    """The document as it is sent."""
    return json.dumps(document()).encode()


async def openapi_json(_: Request) -> Response:
    """The OpenAPI document."""
    return Response(described(), media_type="application/json")


async def docs(_: Request) -> Response:
    """The document as a page."""
    return HTMLResponse(_page(), headers={"Content-Security-Policy": POLICY})


@cache
def _page() -> str:
    return text_of("docs.html", {**document(), "problems": _problems()})


def _problems() -> list[tuple[int, str, str, str]]:
    own = [
        (status_of_class(one), one.code, one.meaning, one.remedy)
        for one in vars(errors).values()
        if isinstance(one, type)
        and issubclass(one, CassieqError)
        and status_of_class(one) != HTTPStatus.INTERNAL_SERVER_ERROR
        if one.meaning
    ]
    others = ((status, code, title, "") for status, (code, title) in rest.REFUSALS.items())
    return sorted({*own, *others})
