"""Pure rules without I/O, clock or randomness: `now` and new ids are arguments."""
