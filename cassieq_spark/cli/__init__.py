"""The command ``cassieq`` manages queues and a local Cassandra from a terminal."""

from __future__ import annotations

from cassieq_spark.cli.app import main

__all__ = ["main"]
