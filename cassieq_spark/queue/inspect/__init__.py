"""Inspect a queue without changing it: statistics, browsing, and the facts behind the views."""
