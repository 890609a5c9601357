"""The views: what ``spark.read.format("cassieq")`` shows of a queue."""
