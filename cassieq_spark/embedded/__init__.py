"""A real Cassandra without Docker: fetched once, started in processes that cannot outlive you."""

from __future__ import annotations

from cassieq_spark.embedded.cluster import EmbeddedCassandra
from cassieq_spark.embedded.node import Node

__all__ = ["EmbeddedCassandra", "Node"]
