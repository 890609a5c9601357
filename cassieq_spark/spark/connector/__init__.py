"""The sink for ``foreachBatch``, which writes through the Spark Cassandra Connector."""
