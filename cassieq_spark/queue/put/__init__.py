"""Put messages: from the arguments of a call to rows that are stored and acknowledged."""
