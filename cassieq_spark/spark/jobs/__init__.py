"""These jobs run on Spark: settle a DataFrame, redrive, repair."""
