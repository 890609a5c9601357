"""Run a function for each message of a queue, in processes of its own."""
