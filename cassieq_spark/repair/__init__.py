"""Heal a queue by idempotent steps (design 9), any number of them side by side."""
