"""Define `Option`: its name, the APIs that take it, and its allowed values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

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


SOURCE: Final = frozenset({Scope.SOURCE})
READ: Final = frozenset({Scope.READ})
READING: Final = SOURCE | READ
SINK: Final = frozenset({Scope.SINK})
FORMAT: Final = READING | SINK
EVERYWHERE: Final = FORMAT | {Scope.CONNECTION}
QUEUE: Final = frozenset({Scope.QUEUE})
SPARK: Final = frozenset({Scope.SPARK})


_ROW: Final = "cassieq_option"


def row(allowed: Values[Any], *, default: Any = None, **more: Any) -> Any:
    """Define a field of a frozen value that is an option, with the attributes of `Option`."""
    # Under one key: pydantic reads keys such as "default" as its own.
    return field(default=default, metadata={_ROW: {"values": allowed, "default": default, **more}})


def rows_of(kind: type, scopes: frozenset[Scope], *, is_python: bool = False) -> list[Option]:
    """The options that a class has as its own fields, without those of its base.

    Args:
        is_python: Whether they are named like keywords of Python: ``max_deliveries``.
    """
    found = []
    for one in fields(kind):
        if _ROW in one.metadata and one.name in kind.__annotations__:
            attributes = one.metadata[_ROW]
            # A field of a time has its unit in its name; the option has not (conventions 2).
            name = one.name.removesuffix("_s") if attributes.get("unit") == "seconds" else one.name
            if not is_python:
                name = re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)
            found.append(Option(name=name, field=one.name, scopes=scopes, **attributes))
    return found
