"""The verbs of a queue, one file for each. Rules are in `model`, tables in `store`."""
