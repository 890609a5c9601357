"""Notice a misspelt environment variable: it would be ignored in silence."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from cassieq_spark.options.option import ENV_PREFIX
from cassieq_spark.options.table import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

OTHERS: Final = (
    "CASSIEQ_ACCESS_KEY_ID",
    "CASSIEQ_ACCESS_LOG",
    "CASSIEQ_FORK_SERVER",
    "CASSIEQ_IVY_SETTINGS",
    "CASSIEQ_LOG_FORMAT",
    "CASSIEQ_LOG_LEVEL",
    "CASSIEQ_MASTER_KEY_FILE",
    "CASSIEQ_SECRET_ACCESS_KEY",
)
"""Variables that are no option's."""

KNOWN: Final = tuple(
    sorted({*OTHERS, *(option.variable for option in OPTIONS if option.has_variable)})
)

_CLOSE: Final = 0.8
"""How alike two names are without the prefix, for one to be a misspelt form of the other.

Without a limit, a program's own variables would each be taken for one of ours.
"""


def misspelt(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each variable that looks like one of ours and is none, with the nearest of ours."""
    bare = [one.removeprefix(ENV_PREFIX) for one in KNOWN]
    found = []
    for name in sorted(names):
        plain = name.upper().replace("-", "_")
        if name in KNOWN or not plain.startswith(ENV_PREFIX):
            continue
        near = difflib.get_close_matches(
            plain.removeprefix(ENV_PREFIX), bare, n=1, cutoff=_CLOSE
        ) or _without_underscores(plain, bare)
        found += [(name, ENV_PREFIX + one) for one in near]
    return found


def nearest_to(variable: str, names: Iterable[str]) -> str:
    """A sentence for an error that says an option is not set, if a variable of it is misspelt."""
    wrong = [name for name, right in misspelt(names) if right == variable]
    return f" Variable {wrong[0]} is not read: did you mean {variable}?" if wrong else ""


def _without_underscores(name: str, bare: list[str]) -> list[str]:
    flat = name.removeprefix(ENV_PREFIX).replace("_", "")
    return [one for one in bare if one.replace("_", "") == flat][:1]
