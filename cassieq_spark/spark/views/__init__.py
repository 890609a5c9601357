"""The views are what ``spark.read.format("cassieq")`` shows of a queue."""
