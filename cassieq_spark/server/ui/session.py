"""Log in by a key, and out: who visits, by cookie, and whether a form was on a page of ours.

A session is a token that the visitor's key has signed (`accounts.tokens`), for what the page does
and for a working day. So every gateway knows it, none keeps it, it ends with its key, and nobody
learns the secret from it.

A form has the HMAC of the visitor's cookie: whoever makes a visitor's browser send a form cannot
read that cookie. Before a login, and where there is none, the cookie is a random one.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cassieq_spark.accounts import tokens
from cassieq_spark.errors import AuthenticationFailed, OptionInvalid
from cassieq_spark.model.rights import Grant, Principal, Right
from cassieq_spark.options.values import Secret
from cassieq_spark.server.guards import UI, Refusal
from cassieq_spark.server.rest.call import Strict
from cassieq_spark.server.settings import is_loopback
from cassieq_spark.server.ui.page import HOME, LOGIN, Form, GoTo, Shown, Visit

SESSION_S: Final = 8 * 3_600
"""The length of a login."""

BEFORE_S: Final = 300
"""A session begins so much earlier: gateways' clocks differ a little."""

GRANTS: Final = (
    Grant(rights=frozenset({Right.READ, Right.INFO, Right.DELETE, Right.REDRIVE}), patterns=("*",)),
)
"""The most that a session may do: what the pages do. Its cookie is a token, and may be stolen."""


def itself(principal: Principal) -> Principal:
    """The key that has logged in.

    A session leaves out 'put' and 'create', so that a stolen one puts nothing but what pages put.
    """
    return replace(principal, limits=None) if principal.limits == GRANTS else principal


LONGEST: Final = 200
WRONG: Final = "The access key id or the secret is wrong, or the key was disabled."
ENDED: Final = "The session has ended. Log in again."

_SESSION: Final = "cassieq-ui"
_FORMS: Final = "cassieq-ui-forms"
_PURPOSE: Final = b"cassieq form"
_LONGEST_FORMS: Final = 100


class Cookies:
    """The cookies of one request."""

    def __init__(self, request: Request) -> None:
        self._is_secure = request.url.scheme == "https"
        self.session = request.cookies.get(self._name(_SESSION), "")
        known = request.cookies.get(self._name(_FORMS), "")
        self._forms = known if 0 < len(known) <= _LONGEST_FORMS else secrets.token_urlsafe(32)
        self._is_new = self._forms != known

    @property
    def csrf(self) -> str:
        """The text that every form of this visitor carries."""
        secret = (self.session or self._forms).encode("utf-8", "surrogateescape")
        return hmac.digest(secret, _PURPOSE, "sha256").hex()

    def check(self, given: str) -> None:
        """Return if a form has what the forms of this visitor have.

        Raises:
            Refusal: It has not.
        """
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.csrf.encode()):
            raise Refusal(
                403,
                "The form is not from a page that was opened in this session, or the browser keeps "
                "no cookies of this site. Open the page anew, and send the form again.",
            )

    def write(self, response: Response, session: str | None) -> None:
        """Add the cookies that have changed to an answer.

        Args:
            session: As `GoTo.session`.
        """
        if session:
            self._set(response, _SESSION, session, SESSION_S)
        elif session is not None:
            self._set(response, _SESSION, "", 0)
        if self._is_new and not self.session:
            self._set(response, _FORMS, self._forms, None)

    def _name(self, name: str) -> str:
        # A cookie of that name comes from this host over TLS, and from no other one of the domain.
        return f"__Host-{name}" if self._is_secure else name

    def _set(self, response: Response, name: str, value: str, lasts_s: int | None) -> None:
        response.set_cookie(
            self._name(name),
            value,
            max_age=lasts_s,
            path="/" if self._is_secure else UI,
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )


class Login(Strict):
    """The page to go to after the login, and whether a session has ended."""

    next: str = ""
    ended: bool = False


class LoginForm(Form):
    """A key."""

    access_key_id: str
    secret: str
    next: str = ""


async def ask(visit: Visit) -> Shown | GoTo:
    """The form."""
    if not visit.gate.has_accounts:
        return GoTo(path=HOME)
    return _form(visit, visit.given.next, ENDED if visit.given.ended else "")


async def log_in(visit: Visit) -> Shown | GoTo:
    """A token that the given secret signs is checked as any other: only the key's own passes."""
    if not visit.gate.has_accounts:
        return GoTo(path=HOME)
    given: LoginForm = visit.given
    try:
        now_us = await visit.backend.now_us()
        session = tokens.sign(
            given.access_key_id.strip()[:LONGEST],
            Secret(given.secret.strip()[:LONGEST]),
            GRANTS,
            begins_us=now_us - BEFORE_S * 1_000_000,
            ends_us=now_us + SESSION_S * 1_000_000,
        )
        await visit.gate.by_token(session, visit.request)
    except (AuthenticationFailed, OptionInvalid, UnicodeError):
        return _form(visit, given.next, WRONG, status=401)
    return GoTo(path=given.next if is_ours(given.next) else HOME, session=session)


async def log_out(_: Visit) -> GoTo:
    """The browser forgets the session."""
    return GoTo(path=LOGIN, session="")


def is_ours(path: str) -> bool:
    """Whether an address is one of these pages."""
    return path.startswith(HOME) and path.isascii() and path.isprintable() and "\\" not in path


def _form(visit: Visit, next_page: str, problem: str, *, status: int = 200) -> Shown:
    client = visit.request.client
    is_plain = visit.request.url.scheme == "http" and not (
        client is not None and is_loopback(client.host)
    )
    values = {"next": next_page, "problem": problem, "is_plain": is_plain}
    return Shown("login.html", values, status)
