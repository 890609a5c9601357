"""The sink that writes through the Spark Cassandra Connector, for ``foreachBatch``."""
