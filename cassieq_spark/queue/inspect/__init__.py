"""Inspect a queue without changing it: statistics, browsing, and the facts that views show."""
