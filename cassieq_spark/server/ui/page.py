"""`Visit` is a request of the page; `Shown` and `GoTo` are its answers, and templates make HTML."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from cassieq_spark.model.moments import time_of
from cassieq_spark.server import door
from cassieq_spark.server.beside import Rates, RepairLog
from cassieq_spark.server.guards import UI
from cassieq_spark.server.rest.call import Strict
from cassieq_spark.server.ui.bodies import MOST_TEXT, visible
from cassieq_spark.server.ui.counts import Counts

HOME: Final = f"{UI}/"
LOGIN: Final = f"{UI}/login"


class Form(Strict):
    """A form of ours: it shows that the page that it was on is ours."""

    csrf: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page.

    Attributes:
        values: What the template shows.
    """

    template: str
    values: dict[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """The visitor is sent to another page.

    Attributes:
        session: The session that begins; empty: the visitor's session ends; None: neither.
    """

    path: str
    session: str | None = None


@dataclass(slots=True, kw_only=True)
class Visit(door.Call):
    """A request for a page.

    Attributes:
        counts, repairs, rates: The figures that the pages show.
        given: An instance of the page's parameters.
    """

    counts: Counts
    repairs: RepairLog
    rates: Rates
    given: Any

    @property
    def queue_name(self) -> str:
        """The queue as the visitor knows it."""
        return self.principal.own_name(self.queue) or self.queue

    def shown(self, template: str, *, status: int = 200, **values: Any) -> Shown:
        """A page about this queue."""
        about = {"queue": self.queue_name, "path": self.path_of()}
        return Shown(template, {**about, **values}, status)

    def path_of(self, what: str = "") -> str:
        """The address of this queue, or of a page of it."""
        path = f"{UI}/queues/{self.queue_name}"
        return f"{path}/{what}" if what else path


# --- HTML -----------------------------------------------------------------------------------------

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # With no-referrer, a browser would not say which site a form comes from.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

FILES: Final = {"style.css": "text/css", "icon.svg": "image/svg+xml"}
NONE: Final = "\N{EN DASH}"
"""The text that is shown in place of a missing value."""

_FOLDER: Final = "templates"
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def age(seconds: float | None) -> str:
    """A duration in the unit that fits."""
    if seconds is None:
        return NONE
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def number(value: float | None) -> str:
    """A number with its thousands apart."""
    return NONE if value is None else f"{value:,}"


def moment(value: datetime | int | None) -> str:
    """A time, UTC; a number is microseconds."""
    if value is None:
        return NONE
    at = time_of(value) if isinstance(value, int) else value
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, one: str, more: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__, _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pretty = partial(json.dumps, indent=2)
    made.filters.update(age=age, number=number, moment=moment, visible=visible, pretty=pretty)
    made.globals.update(plural=plural, style=version_of("style.css"), most_text=MOST_TEXT)
    return made


def load_templates() -> None:
    """Compile all templates."""
    for name in _templates().list_templates(extensions=["html"]):
        _templates().get_template(name)


def text_of(template: str, values: dict[str, Any]) -> str:
    """The HTML that a template makes of values."""
    return _templates().get_template(template).render(values)


def html(template: str, values: dict[str, Any], status: int) -> Response:
    """A page."""
    return HTMLResponse(text_of(template, values), status_code=status, headers=HEADERS)


@cache
def content_of(name: str) -> bytes:
    """Return the content of one of `FILES`."""
    return (files(__package__) / _FOLDER / name).read_bytes()


@cache
def version_of(name: str) -> str:
    """A text that changes with a file: browsers keep the file until then."""
    return hashlib.sha256(content_of(name)).hexdigest()[:12]


async def file(name: str) -> Response:
    """Answer with one of `FILES`, which a browser may keep."""
    kept = {**HEADERS, "Cache-Control": "public, max-age=86400"}
    return Response(content_of(name), media_type=FILES[name], headers=kept)
