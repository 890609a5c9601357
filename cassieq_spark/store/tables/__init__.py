"""Each module is one table or two: reads, writes, and the mapping of rows to the model."""
