"""Jobs that run on Spark: settle a DataFrame, redrive, repair."""
