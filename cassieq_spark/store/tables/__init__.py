"""The tables, one or two in each module: reads, writes, and the mapping of rows to the model."""
