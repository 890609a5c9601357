"""Jobs that Spark runs on a queue: settle a DataFrame, redrive, repair."""
