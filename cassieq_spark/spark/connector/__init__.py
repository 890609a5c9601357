"""The sink for ``foreachBatch`` writes through the Spark Cassandra Connector."""
