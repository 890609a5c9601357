"""Define `Option`: its name, the APIs that take it, and its allowed values."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, get_type_hints

from cassieq_spark.model.lanes import LONGEST_DELAY_US
from cassieq_spark.options.values import Values

ENV_PREFIX: Final = "CASSIEQ_"

FOUR_HUNDRED_DAYS_S: Final = LONGEST_DELAY_US / 1e6
"""The longest time that a message is kept for, by its queue or its time to live: no message can be
due later than that."""

THIRTY_DAYS_S: Final = 30 * 86_400.0
"""The longest visibility timeout (G6)."""


class Scope(Enum):
    """The API that takes an option; errors call it by the value."""

    CONNECTION = "connect()"
    SOURCE = "the cassieq source"
    READ = "the cassieq batch reader"
    SINK = "the cassieq sink"
    QUEUE = "create_queue()"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        field: The field of a frozen value that holds it; empty: several make one value.
        default: The parsed default; None: unset.
        unit: The unit of a number, for the reference.
        example: An example as a user writes it; an option with a default needs none.
        has_variable: Whether an environment variable may set it. Options that name one writer's
            transaction have none: two writers of one environment would share it.
        is_secret: Whether its value must not appear in errors.
    """

    name: str
    field: str = ""
    scopes: frozenset[Scope]
    values: Values[Any]
    doc: str
    default: Any = None
    unit: str = ""
    example: Any = None
    is_required: bool = False
    has_variable: bool = True
    is_secret: bool = False
    since: str = "0.1"

    @property
    def variable(self) -> str:
        """The environment variable's name: ``contactPoints`` is ``CASSIEQ_CONTACT_POINTS``."""
        return ENV_PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).upper()

    def checked(self, where: str, value: object, *, given: object = None) -> Any:
        """Parse a value that stands in a place, as `Values.checked` does."""
        return self.values.checked(where, value, given=given, is_secret=self.is_secret)


SOURCE: Final = frozenset({Scope.SOURCE})
READ: Final = frozenset({Scope.READ})
READING: Final = SOURCE | READ
SINK: Final = frozenset({Scope.SINK})
FORMAT: Final = READING | SINK
EVERYWHERE: Final = FORMAT | {Scope.CONNECTION}
QUEUE: Final = frozenset({Scope.QUEUE})
SPARK: Final = frozenset({Scope.SPARK})


class Row(dict[str, Any]):
    """What a field says of its option: the attributes of `Option` that nothing else says."""


_ROW: Final = "cassieq_option"


def row(allowed: Values[Any], *, default: Any = None, **more: Any) -> Any:
    """Define a field of a frozen value that is an option; its class's docstring explains it."""
    # Under one key: pydantic reads keys such as "default" as its own.
    return field(default=default, metadata={_ROW: Row(values=allowed, default=default, **more)})


def rows_of(kind: type, scopes: frozenset[Scope], *, is_python: bool = False) -> list[Option]:
    """The options that a class has as its own fields, without those of its base.

    A field has a `Row` in its metadata or its annotation, and is explained by the docstring.

    Args:
        is_python: Whether they are named like keywords of Python: ``max_deliveries``.
    """
    meanings = named_in(parts_of(kind).get("Attributes", ""))
    if is_dataclass(kind):
        rows = {one.name: one.metadata.get(_ROW) for one in fields(kind)}
    else:
        hints = get_type_hints(kind, include_extras=True)
        rows = {name: hint.__metadata__[0] for name, hint in hints.items()}
    found = []
    for one, attributes in rows.items():
        if attributes is None or one not in kind.__annotations__:
            continue
        # A field of a time has its unit in its name; the option has not (conventions 2).
        name = one.removesuffix("_s") if attributes.get("unit") == "seconds" else one
        name = name if is_python else camel_case(name)
        found.append(
            Option(name=name, field=one, scopes=scopes, doc=meanings.get(one, ""), **attributes)
        )
    return found


def camel_case(name: str) -> str:
    """``contact_points`` is ``contactPoints``, as Spark writes options."""
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def parts_of(thing: object) -> dict[str, str]:
    """The parts of a docstring, by their titles (``Args``); the text before them under ``""``."""
    named = re.split(r"^(\w+):\n", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return dict(zip(["", *named[1::2]], named[::2], strict=True))


def named_in(part: str) -> dict[str, str]:
    """What a part of a docstring says of each name."""
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", part, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that somebody meant who misspelt it, in any capitalisation; None: none is near."""
    by_key = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_key, n=1, cutoff=cutoff)
    return by_key[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question for the end of an error, with a space before it; empty if no name is near."""
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""
