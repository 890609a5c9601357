"""Change bucket rows: what one client wants of a row, folded into one CAS at a time."""
