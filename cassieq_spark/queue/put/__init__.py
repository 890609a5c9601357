"""Put messages: turn the arguments of a call into rows that are stored and acknowledged."""
