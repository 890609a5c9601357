"""Tools for tests of programs that use queues: a real Cassandra, and a clock to turn."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.embedded import EmbeddedCassandra, Node
    from cassieq_spark.testing.clock import ManualClock
    from cassieq_spark.testing.wait import ConditionNotMet, wait_until

__all__ = ["ConditionNotMet", "EmbeddedCassandra", "ManualClock", "Node", "wait_until"]

#: Imported on first use, so that one of them does not pay for the others.
_HOME = {
    "ConditionNotMet": "cassieq_spark.testing.wait",
    "EmbeddedCassandra": "cassieq_spark.embedded",
    "ManualClock": "cassieq_spark.testing.clock",
    "Node": "cassieq_spark.embedded",
    "wait_until": "cassieq_spark.testing.wait",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
