"""Write batches in transactions: what Spark's sinks, and moves of dead letters, are made of."""
