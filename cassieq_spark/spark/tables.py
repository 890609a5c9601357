"""Explain what SQL can do with queues: Spark keeps the options of ``CREATE TABLE`` to itself.

A table of the session catalog knows its options, but Spark hands only those of a statement to a
Python data source, ``SELECT * FROM t WITH (...)`` (`V2SessionCatalog.loadTable`,
`PythonDataSourceV2.getTable`; Spark 4.2 and 4.3). A temporary view keeps its options.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OF_TABLE: Final = "option."
"""Spark stores each option of CREATE TABLE under this prefix, too."""

VIEW: Final = (
    "CREATE TEMPORARY VIEW v (body BINARY, tag STRING) USING cassieq OPTIONS (contactPoints '...', "
    "queue '...')"
)
"""A view by which SQL can read a queue and write to it."""

STATEMENT: Final = "SELECT * FROM t WITH (contactPoints = '...', queue = '...')"
"""How a statement about a table gets options."""


def is_created_by(options: Mapping[str, Any]) -> bool:
    """Whether these are the properties of a ``CREATE TABLE`` without columns."""
    return "provider" in options or any(name.lower().startswith(_OF_TABLE) for name in options)


def refuse_options(properties: Mapping[str, Any]) -> None:
    """Refuse a table whose options no statement would get.

    Raises:
        OptionInvalid: The table has options.
    """
    own = {one.name.lower(): one.name for one in OPTIONS}
    keys = [name[len(_OF_TABLE) :] for name in properties if name.lower().startswith(_OF_TABLE)]
    if keys:
        names = ", ".join(sorted(own.get(key.lower(), key) for key in keys))
        raise OptionInvalid(
            f"this CREATE TABLE has OPTIONS ({names}), but Spark does not give "
            f"them to the statements that use the table. Use a temporary view instead: {VIEW}. Or "
            f"create the table without OPTIONS, and give them in each statement: {STATEMENT}"
        )


@contextmanager
def explained(options: Mapping[str, Any]) -> Iterator[None]:
    """Add to an error about a missing option why there may be none at all."""
    try:
        yield
    except OptionInvalid as error:
        if options:
            raise
        stop = "" if error.message.endswith(("?", ".")) else "."
        raise OptionInvalid(
            f"{error.message}{stop} Spark has given no options. If this is a table that was made "
            "with CREATE TABLE, Spark does not give its OPTIONS to the statements that use it. "
            f"Give them in the statement: {STATEMENT}. Or use a temporary view: {VIEW}"
        ) from error
