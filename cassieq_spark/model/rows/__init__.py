"""Change bucket rows: all that one client wants of a row, folded into one CAS at a time."""
