"""Each file is one table of design 2: its reads, its writes, and row <-> model."""
