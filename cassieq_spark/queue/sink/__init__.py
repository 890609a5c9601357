"""Write batches in transactions, for Spark's sinks and for moves of dead letters."""
