"""The streaming source: what ``spark.readStream.format("cassieq")`` runs."""
