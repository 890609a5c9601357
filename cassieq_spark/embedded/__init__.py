"""Run a real Cassandra without Docker: fetched once, in processes that cannot outlive you."""

from __future__ import annotations

from cassieq_spark.embedded.cluster import EmbeddedCassandra
from cassieq_spark.embedded.node import Node

__all__ = ["EmbeddedCassandra", "Node"]
