"""Pure rules: no I/O, no clock, no randomness; `now` and new ids are arguments."""
