"""What a client does with a queue, one file per verb; rules are in `model`, storage in `store`."""
