"""The one door to Spark: the data source ``cassieq`` and its two doors for writing."""
