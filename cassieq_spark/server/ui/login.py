"""Log in by a key, and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import AuthenticationFailed, OptionInvalid
from cassieq_spark.options.values import Secret
from cassieq_spark.server.rest.fields import Strict
from cassieq_spark.server.settings import is_loopback
from cassieq_spark.server.ui.page import HOME, LOGIN, Form, GoTo, Shown
from cassieq_spark.server.ui.session import BEFORE_S, GRANTS, SESSION_S

if TYPE_CHECKING:
    from cassieq_spark.server.ui.page import Visit

LONGEST: Final = 200
WRONG: Final = "The access key id or the secret is wrong, or the key was disabled."
ENDED: Final = "The session has ended. Log in again."


class Login(Strict):
    """Where to go afterwards, and whether a session has ended."""

    next: str = ""
    ended: bool = False


class LoginForm(Form):
    """A key."""

    access_key_id: str
    secret: str
    next: str = ""


async def show(visit: Visit) -> Shown | GoTo:
    """The form."""
    if not visit.has_login:
        return GoTo(path=HOME)
    return _form(visit, visit.given.next, ENDED if visit.given.ended else "")


async def log_in(visit: Visit) -> Shown | GoTo:
    """A token that the given secret signs is checked as any other: only the key's own passes."""
    from cassieq_spark.accounts import tokens  # noqa: PLC0415 - needs the extra `accounts`

    if not visit.has_login:
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
    return Shown(template="login.html", values=values, status=status)
