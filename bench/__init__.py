"""Benchmarks: ratios against a raw limit, measured in one run. Run ``python -m bench``."""
