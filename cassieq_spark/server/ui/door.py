"""`UiDoor` lets a visitor in, lets the page run, and writes the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import AuthenticationFailed, CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Principal
from cassieq_spark.server.by_method import methods_of, routes
from cassieq_spark.server.limits import TooLong
from cassieq_spark.server.measured import asked_of
from cassieq_spark.server.rest.fields import from_query
from cassieq_spark.server.rest.problems import Refusal, code_of, problem_of, status_of
from cassieq_spark.server.ui import render
from cassieq_spark.server.ui.counted import Counts
from cassieq_spark.server.ui.page import HOME, LOGIN, PREFIX, GoTo, Page, Shown, Visit
from cassieq_spark.server.ui.pages import PAGES
from cassieq_spark.server.ui.session import Cookies

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.principal import Gate
    from cassieq_spark.server.rates import Rates
    from cassieq_spark.server.repairing import RepairLog

LONGEST_FORM: Final = 65_536
REQUEST_ID: Final = "Cassieq-Request-Id"
_FORM: Final = "application/x-www-form-urlencoded"
_NOBODY: Final = Principal(account="", key_id="", grants=())
"""Whoever is not logged in."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    method: str = "GET"


FILES: Final = tuple(_File(f"/{name}") for name in render.FILES)
METHODS: Final = methods_of((*PAGES, *FILES), PREFIX)
"""The methods of each path of the page."""

_logger = get_logger("server")


class UiDoor:
    """The ASGI application of the page, below its prefix."""

    def __init__(
        self,
        backend: Backend,
        gate: Gate,
        repairs: RepairLog,
        rates: Rates,
        *,
        has_login: bool,
    ) -> None:
        """Prepare.

        Args:
            has_login: Whether accounts are checked.
        """
        self._backend = backend
        self._gate = gate
        self._repairs = repairs
        self._rates = rates
        self._counts = Counts(backend)
        self._has_login = has_login
        self._router = Router(
            routes=[
                *routes(PAGES, self.answer),
                *(Route(one.path, _file) for one in FILES),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a bug answers one request only."""
        request_id = str(new_uuid())
        request = Request(scope, receive)
        try:
            await self._router(scope, receive, send)
        except (asyncio.CancelledError, TooLong):
            raise
        except ClientDisconnect:
            return
        except HTTPException as error:
            refusal = Refusal(error.status_code, "Go to the queues, and look for it there.")
            await self._problem(request, refusal, request_id)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - see above
            await self._problem(request, error, request_id)(scope, receive, send)

    async def answer(self, page: Page, request: Request) -> Response:
        """Show a page, or do what its form says."""
        asked_of(request.scope).operation = page.name
        cookies = Cookies(request)
        try:
            principal = await self._principal(page, request, cookies)
        except AuthenticationFailed:
            return self._unknown(page, request, cookies)
        queue = ""
        if "queue" in request.path_params:
            queue = principal.full_name(request.path_params["queue"])
        if page.right is not None and queue:
            principal.require(page.right, queue)
        elif page.right is not None:
            principal.require_somewhere(page.right)
        given = await _given(page, request, cookies)
        found = await page.run(
            Visit(
                page=page,
                request=request,
                gate=self._gate,
                principal=principal,
                backend=self._backend,
                repairs=self._repairs,
                rates=self._rates,
                counts=self._counts,
                queue=queue,
                given=given,
                has_login=self._has_login,
            )
        )
        if page.method == "POST":
            self._counts.forget()
        if isinstance(found, GoTo):
            return _go(found, cookies)
        return self._shown(found, cookies, principal)

    async def _principal(self, page: Page, request: Request, cookies: Cookies) -> Principal:
        """Who visits; nobody has any right on a page that is open.

        Raises:
            AuthenticationFailed: Nobody who is logged in.
        """
        if not page.is_open or not self._has_login:
            return await self._gate.by_token(cookies.session, request)
        return _NOBODY

    def _unknown(self, page: Page, request: Request, cookies: Cookies) -> Response:
        """Ask a visitor to log in."""
        if page.method != "GET":
            problem = Refusal(403, "The session has ended. Log in, and send the form again.")
            return self._problem(request, problem, "")
        if not cookies.session and request.headers.get("sec-fetch-site") == "cross-site":
            # A link on another site leads here: the browser sends the cookie only once it is here.
            again = Shown(template="again.html", values={"path": _path_of(request)})
            return self._shown(again, cookies, _NOBODY)
        query = {"next": _path_of(request)}
        if cookies.session:
            query["ended"] = "true"
        return _go(GoTo(path=f"{LOGIN}?{urlencode(query)}", session=""), cookies)

    def _shown(self, found: Shown, cookies: Cookies, principal: Principal) -> Response:
        values: dict[str, Any] = {
            "home": HOME,
            "base": PREFIX,
            "csrf": cookies.csrf,
            "account": principal.account,
            "key_id": principal.key_id,
            "has_login": self._has_login,
            **found.values,
        }
        response = render.html(found.template, values, found.status)
        cookies.write(response, None)
        return response

    def refused(self, scope: Scope, refusal: Refusal) -> Response:
        """The answer to a request that a guard refuses."""
        return self._problem(Request(scope), refusal, "")

    def _problem(self, request: Request, error: Exception, request_id: str) -> Response:
        """An error as a page: what has happened, and what to do."""
        status = status_of(error)
        if status == 500:  # noqa: PLR2004 - our fault
            code = error.code if isinstance(error, CassieqError) else type(error).__name__
            event(_logger, "request_failed", request=request_id, action="ui", error=code)
            _logger.debug("request %s", request_id, exc_info=error)
        asked_of(request.scope).code = code_of(error)
        found = Shown(
            template="problem.html",
            values={"problem": problem_of(error, request_id)},
            status=status,
        )
        response = self._shown(found, Cookies(request), _NOBODY)
        response.headers[REQUEST_ID] = request_id
        if isinstance(error, Refusal):
            response.headers.update(error.headers)
        if status == 503:  # noqa: PLR2004 - the cluster's, or too much to do
            response.headers["Retry-After"] = "1"
        return response


async def to_home(_: Request) -> Response:
    """Where `/ui` leads."""
    return RedirectResponse(HOME, status_code=303)


async def _file(request: Request) -> Response:
    asked_of(request.scope).operation = "file"
    return render.file(request.scope["path"].rpartition("/")[2])


async def _given(page: Page, request: Request, cookies: Cookies) -> Any:
    """What the query or the form says.

    Raises:
        Refusal: The form is not from a page of ours.
        FieldInvalid: A field is wrong.
    """
    if page.method == "GET":
        return from_query(page.parameters, request.scope["query_string"])
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if media_type != _FORM:
        raise Refusal(415, "Send the form of the page.")
    if len(body) > LONGEST_FORM:
        raise Refusal(413, f"A form has at most {LONGEST_FORM:,} bytes. Choose fewer messages.")
    given: Any = from_query(page.parameters, body)
    cookies.check(given.csrf)
    return given


def _path_of(request: Request) -> str:
    """The address that was asked for, as it came."""
    path = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _go(found: GoTo, cookies: Cookies) -> Response:
    response = Response(status_code=303, headers={**render.HEADERS, "Location": found.path})
    cookies.write(response, found.session)
    return response
