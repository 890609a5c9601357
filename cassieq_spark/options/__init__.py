"""Define all options in one table, and the values they are parsed into.

`OPTIONS` generates the parsers, ``docs/reference/options.md`` and ``conf/cassieq.toml``. To add an
option, add its row, which is a field of the value that it is parsed into.
"""

from __future__ import annotations

from cassieq_spark.options.option import (
    ConnectionArguments,
    ConnectionOptions,
    Option,
    QueueSelection,
    ReadOptions,
    Scope,
    SinkOptions,
    SourceOptions,
    Spelling,
)
from cassieq_spark.options.parse import (
    OPTIONS,
    QueueArguments,
    QueueSettings,
    Seconds,
    account_name,
    connection_of,
    parse_connection,
    parse_read,
    parse_sink,
    parse_source,
    parse_view,
    queue_name,
    schedule_name,
)
from cassieq_spark.options.values import DEFAULT_PORT

__all__ = [
    "DEFAULT_PORT",
    "OPTIONS",
    "ConnectionArguments",
    "ConnectionOptions",
    "Option",
    "QueueArguments",
    "QueueSelection",
    "QueueSettings",
    "ReadOptions",
    "Scope",
    "Seconds",
    "SinkOptions",
    "SourceOptions",
    "Spelling",
    "account_name",
    "connection_of",
    "parse_connection",
    "parse_read",
    "parse_sink",
    "parse_source",
    "parse_view",
    "queue_name",
    "schedule_name",
]
