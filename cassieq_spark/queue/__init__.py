"""Do what a client does with a queue, a file per verb; rules are in `model`, tables in `store`."""
