"""Write batches in transactions: Spark's sinks, and moves of dead letters, are built on this."""
