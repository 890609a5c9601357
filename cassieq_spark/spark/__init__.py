"""Everything that needs Spark: the data source ``cassieq``, both writers, and jobs."""
