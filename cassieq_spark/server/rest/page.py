"""The page `/docs`: the OpenAPI document for people, without a script or any other file."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response

from cassieq_spark import errors
from cassieq_spark.errors import CassieqError
from cassieq_spark.server.rest.openapi import document
from cassieq_spark.server.rest.problems import REFUSALS, STATUS, status_of_class

if TYPE_CHECKING:
    from starlette.requests import Request

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE: Final = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 56rem; margin: 0 auto; padding: 0 1rem 4rem; overflow-wrap: anywhere; }
code, pre { font: .9em ui-monospace, monospace; }
pre { overflow-x: auto; } summary { cursor: pointer; padding: .3rem 0; }
summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-top: 1px solid #8884; padding: .25rem .5rem .25rem 0; text-align: left;
  vertical-align: top; }
"""


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
    found = document()
    operations = "".join(
        _operation(method, path, one)
        for path, methods in found["paths"].items()
        for method, one in methods.items()
    )
    schemas = "".join(
        f"<details id='{name}'><summary><code>{name}</code></summary>"
        f"<pre>{escape(json.dumps(schema, indent=2))}</pre></details>"
        for name, schema in sorted(found["components"]["schemas"].items())
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escape(found['info']['title'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(found['info']['title'])} {escape(found['info']['version'])}</h1>"
        f"<p>{escape(found['info']['description'])}</p>"
        "<p>For programs: <a href='/openapi.json'>/openapi.json</a>, OpenAPI 3.1.</p>"
        f"<h2>Operations</h2>{operations}<h2>Bodies</h2>{schemas}"
        f"<h2>Problems</h2><table>{_problems()}</table></html>"
    )


def _operation(method: str, path: str, one: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(of['name'])}</code><td>{of['in']}"
        f"<td>{escape(of.get('description', ''))} {escape(_range(of['schema']))}"
        for of in one["parameters"]
    )
    body = one.get("requestBody")
    sends = "" if body is None else f"<p>Body: {_content(body['content'])}</p>"
    answers = ", ".join(
        f"{status} {_content(of['content'])}" if "content" in of else status
        for status, of in one["responses"].items()
        if int(status) < 400  # noqa: PLR2004 - problems are below
    )
    return (
        f"<details id='{one['operationId']}'><summary><b>{method.upper()}</b> "
        f"<code>{escape(path)}</code> {escape(one['summary'])}</summary>"
        f"<p>{escape(one['description'])}</p><table>{rows}</table>{sends}"
        f"<p>Answers: {answers}</p></details>"
    )


def _content(content: dict[str, Any]) -> str:
    found = []
    for media_type, of in content.items():
        name = of.get("schema", {}).get("$ref", "").rpartition("/")[2]
        link = f" <a href='#{name}'>{name}</a>" if name else ""
        found.append(f"<code>{escape(media_type)}</code>{link}")
    return " or ".join(found)


def _range(schema: dict[str, Any]) -> str:
    found = [
        f"{word} {schema[key]:,}"
        for word, key in (("From", "minimum"), ("to", "maximum"))
        if key in schema
    ]
    if schema.get("default") not in (None, "", []):
        found.append(f"(default: {schema['default']})")
    return " ".join(found)


def _problems() -> str:
    own = [
        (status_of_class(one), one.code, one.meaning, one.remedy)
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, CassieqError) and issubclass(one, _KNOWN)
        if one.meaning
    ]
    rows = sorted(
        {*own, *((status, code, title, "") for status, (code, title) in REFUSALS.items())}
    )
    return "".join(
        f"<tr id='{code}'><td>{status}<td><code>{code}</code><td>{escape(meaning)} {escape(remedy)}"
        for status, code, meaning, remedy in rows
    )


_KNOWN: Final = tuple(STATUS)
