"""Cells and tables of Markdown, and the sentence that says how figures were measured."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def with_text(made: str, text: str) -> str:
    """What was made, and a paragraph below it."""
    return f"{made}\n{textwrap.fill(text, width=104)}\n"


def run_as(found: dict[str, Any]) -> str:
    """The command and its day."""
    return f"`{found['command']}`, {found['date']}."


def spread(values: dict[str, float], form: str) -> str:
    """The median with the least and the most."""
    median, least, most = (form.format(values[key]) for key in ("median", "min", "max"))
    return f"{median} ({least} to {most})"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown has them."""
    lines = [titles, ["---"] * len(titles), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
