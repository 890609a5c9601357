"""Metrics for Prometheus: what this process counts, and what one process counts in all queues.

The rooms: `scan` counts the queues while this process leads, `collector` makes metrics of that,
`listen` serves them on a port, `serve` runs ``cassieq exporter``. All names are in `metrics`.
"""
