"""Suggest the name that somebody meant who misspelt it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question for the end of an error, with a space before it; empty if no name is near."""
    by_key = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_key, n=1)
    return f" Did you mean {by_key[near[0]]!r}?" if near else ""
