"""Define a message's group id: its customer, tenant or request type. Pure.

The group id is stored as a header, the one part of a message that every release keeps: in dead
letters, in redriven messages, and in copies that a sink makes (ADR 40).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

HEADER: Final = "cassieq-group"
"""The stored name. Clients since this release show it as the group id, older ones as a header."""

MOST_CHARACTERS: Final = 128
PATTERN: Final = f"[!-~]{{1,{MOST_CHARACTERS}}}"
ALLOWED: Final = f"1 to {MOST_CHARACTERS} letters (a-z, A-Z), digits and ASCII punctuation"
"""The allowed characters, as in SQS: `PATTERN` is all printable ASCII without the space."""

_GROUP: Final = re.compile(PATTERN)


def is_group(text: str) -> bool:
    """Whether a producer may give this group id."""
    return _GROUP.fullmatch(text) is not None


def with_group(headers: Mapping[str, str], group: str | None) -> dict[str, str]:
    """Return the headers to store for a message of this group; None: without a group."""
    return dict(headers) if group is None else {**headers, HEADER: group}


def split(headers: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Split stored headers into the headers that a consumer sees and the group id.

    Programs that reach Cassandra by older releases may have written any text as a group id.
    """
    if HEADER not in headers:
        return headers, None
    return {name: text for name, text in headers.items() if name != HEADER}, headers[HEADER]
