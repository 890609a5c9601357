"""Show bytes as text, JSON or hex; nothing of a body is interpreted by the browser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal

How = Literal["auto", "text", "json", "hex"]

MOST_TEXT: Final = 16_384
"""The most characters of a body that a page shows."""

MOST_HEX: Final = 2_048
"""The most bytes of a body that a page shows as hex."""

WIDTH: Final = 8
"""The bytes of a line of hex, which fits on the screen of a telephone."""

MOST_DEPTH: Final = 100

_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_KEPT: Final = "\n\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A body as a page shows it.

    Attributes:
        kind: What it is shown as.
        size: Its bytes.
        is_cut: Whether there is more of it.
    """

    kind: str
    text: str
    size: int
    is_cut: bool


def shown(body: bytes, how: How = "auto") -> Shown:
    """The body as it is asked for, or as what it is.

    What is asked for and is not possible is shown as hex.
    """
    text = None
    if how != "hex":
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            text = None
    if text is None:
        return Shown(kind="hex", text=dump(body), size=len(body), is_cut=len(body) > MOST_HEX)
    laid_out = None if how == "text" else indented(text)
    if laid_out is not None:
        text = laid_out
    return Shown(
        kind="text" if laid_out is None else "json",
        text=visible(text[:MOST_TEXT]),
        size=len(body),
        is_cut=len(text) > MOST_TEXT,
    )


def visible(text: str) -> str:
    """The text with signs in place of what a reader would not see, such as marks of direction."""
    return "".join(
        one if one in _KEPT or one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text
    )


def indented(text: str) -> str | None:
    """An object or list of JSON, a member in each line; None if the text is something else.

    Its parts stay as they are: no number is rounded, and no key that is there twice is lost.
    """
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MOST_TEXT:
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = 0
    parts = _PART.findall(text)
    for at, part in enumerate(parts):
        before = parts[at - 1] if at else ""
        if part in ("}", "]"):
            depth -= 1
            out.append(part if before in ("{", "[") else _line(depth) + part)
        elif before in ("{", "[", ","):
            out.append(_line(depth) + part)
        else:
            out.append(part)
        if part in ("{", "["):
            depth += 1
        elif part == ":":
            out.append(" ")
    return "".join(out)


def dump(body: bytes) -> str:
    """The first bytes as hex, with their place and their ASCII."""
    lines = []
    for at in range(0, min(len(body), MOST_HEX), WIDTH):
        part = body[at : min(at + WIDTH, MOST_HEX)]
        signs = "".join(chr(one) if 32 <= one < 127 else "." for one in part)  # noqa: PLR2004
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * WIDTH - 1}}  {signs}")
    return "\n".join(lines)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, MOST_DEPTH)
