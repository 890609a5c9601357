"""Everything that needs Spark is here: the data source ``cassieq``, both writers, and jobs."""
