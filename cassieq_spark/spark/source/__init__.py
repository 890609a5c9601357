"""The streaming source is what ``spark.readStream.format("cassieq")`` runs."""
