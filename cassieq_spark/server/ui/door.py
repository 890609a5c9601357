"""`UiDoor` lets a visitor in, lets the page run, and writes the answer."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from cassieq_spark.errors import AuthenticationFailed
from cassieq_spark.model.rights import Principal
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.beside import Rates, RepairLog
from cassieq_spark.server.door import Addresses, Door, headers_of, queue_of
from cassieq_spark.server.guards import UI, Refusal, asked_of
from cassieq_spark.server.operations import PAGES, Page
from cassieq_spark.server.principal import Gate
from cassieq_spark.server.rest.call import from_query, noted
from cassieq_spark.server.ui import page as pages
from cassieq_spark.server.ui.counts import Counts
from cassieq_spark.server.ui.page import HOME, LOGIN, GoTo, Shown, Visit
from cassieq_spark.server.ui.session import Cookies

LONGEST_FORM: Final = 65_536
_FORM: Final = "application/x-www-form-urlencoded"
_NOBODY: Final = Principal(account="", key_id="", grants=())
"""The principal of a visitor who is not logged in."""


_FILES: Final = tuple(Page("file", None, pages.file, "GET", f"/{name}") for name in pages.FILES)


class UiDoor(Door):
    """The ASGI application of the page, below its prefix."""

    addresses = Addresses((*PAGES, *_FILES), UI, nothing="Go to the queues, and look for it there.")

    def __init__(self, backend: Backend, gate: Gate, repairs: RepairLog, rates: Rates) -> None:
        super().__init__(backend, gate)
        self.repairs = repairs
        self.rates = rates
        self.counts = Counts(backend)

    async def answer(self, request: Request) -> Response:
        """Show a page, or do what its form says."""
        page = self.addresses.find(request.scope)
        asked_of(request.scope).operation = page.name
        if page in _FILES:
            return await pages.file(page.path[1:])
        cookies = Cookies(request)
        principal = _NOBODY
        try:
            if not page.is_open or not self._gate.has_accounts:
                principal = await self._gate.by_token(cookies.session, request)
        except AuthenticationFailed:
            return self._unknown(page, request, cookies)
        queue = queue_of(request, principal, page)
        given = await _given(page, request, cookies)
        found = await page.run(
            Visit(
                operation=page,
                request=request,
                gate=self._gate,
                principal=principal,
                backend=self._backend,
                counts=self.counts,
                repairs=self.repairs,
                rates=self.rates,
                queue=queue,
                given=given,
            )
        )
        if page.method == "POST":
            self.counts.forget()
        if isinstance(found, GoTo):
            return _go(found, cookies)
        return self._shown(found, cookies, principal)

    def _unknown(self, page: Page, request: Request, cookies: Cookies) -> Response:
        """Ask a visitor to log in."""
        if page.method != "GET":
            raise Refusal(403, "The session has ended. Log in, and send the form again.")
        if not cookies.session and request.headers.get("sec-fetch-site") == "cross-site":
            # A link on another site leads here: the browser sends the cookie only once it is here.
            again = Shown("again.html", {"path": _path_of(request)})
            return self._shown(again, cookies, _NOBODY)
        query = {"next": _path_of(request)}
        if cookies.session:
            query["ended"] = "true"
        return _go(GoTo(path=f"{LOGIN}?{urlencode(query)}", session=""), cookies)

    def _shown(self, found: Shown, cookies: Cookies, principal: Principal) -> Response:
        values: dict[str, Any] = {
            "home": HOME,
            "base": UI,
            "csrf": cookies.csrf,
            "account": principal.account,
            "key_id": principal.key_id,
            "has_login": self._gate.has_accounts,
            **found.values,
        }
        response = pages.html(found.template, values, found.status)
        cookies.write(response, None)
        return response

    def failure(self, error: Exception, scope: Scope) -> Response:
        """An error as a page: what has happened, and what to do."""
        problem = noted(error, scope, "ui")
        found = Shown("problem.html", {"problem": problem}, problem["status"])
        response = self._shown(found, Cookies(Request(scope)), _NOBODY)
        response.headers.update(headers_of(scope, error))
        return response


async def to_home(_: Request) -> Response:
    """Redirect from `/ui` to the home page."""
    return RedirectResponse(HOME, status_code=303)


async def _given(page: Page, request: Request, cookies: Cookies) -> Any:
    """Return the parameters of the query or of the form.

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
    response = Response(status_code=303, headers={**pages.HEADERS, "Location": found.path})
    cookies.write(response, found.session)
    return response
