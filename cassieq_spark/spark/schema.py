"""The source's columns, and which of them a user asks for.

Spark's lookup and planning processes need this and no Arrow: `columns` builds them, in tasks.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options.option import did_you_mean

SCHEMA: Final = StructType(
    [
        StructField("message_id", StringType()),
        StructField("queue", StringType()),
        StructField("body", BinaryType()),
        StructField("tag", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("id", LongType()),
        StructField("bucket", LongType()),
        StructField("enqueued_at", TimestampType()),
        StructField("delivery_count", IntegerType()),
        StructField("receipt", StringType()),
    ]
)
"""The columns of a load without a schema, in their order."""

ALL: Final = StructType(
    [
        *SCHEMA,
        StructField("lane", StringType()),
        StructField("priority", IntegerType()),
        StructField("group", StringType()),
    ]
)
"""All columns; those that are not in `SCHEMA` exist where a user's schema names them."""


def resolve(schema: StructType, has: StructType = ALL, whose: str = "a queue") -> tuple[str, ...]:
    """The names that a user's schema asks for.

    Args:
        has: All existing columns.
        whose: Their owner, as errors call it.

    Raises:
        OptionInvalid: The schema names an unknown column, another type, or a column twice; raised
            before anything is read or taken.
    """
    all_columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in has)
    if not schema.fields:
        raise OptionInvalid(
            f"the schema names no column. {whose[0].upper()}{whose[1:]} has: {all_columns}"
        )
    refuse_twice(schema)
    for field in schema.fields:
        if field.name not in has.names:
            raise OptionInvalid(
                f"unknown column {field.name!r} in the schema."
                f"{did_you_mean(field.name, has.names)} {whose[0].upper()}{whose[1:]} has: "
                f"{all_columns}"
            )
        expected = has[field.name].dataType
        if field.dataType.simpleString() != expected.simpleString():
            raise OptionInvalid(
                f"column {field.name!r} of the schema is {field.dataType.simpleString()}, but "
                f"{whose} has it as {expected.simpleString()}"
            )
    return tuple(schema.names)


def refuse_twice(schema: StructType) -> None:
    """Refuse a column that is there twice: Arrow finds it by name, so each task would fail.

    Raises:
        OptionInvalid: It names the first such column.
    """
    for at, name in enumerate(schema.names):
        if name in schema.names[:at]:
            raise OptionInvalid(f"column {name!r} is in the schema twice. Name it once")
