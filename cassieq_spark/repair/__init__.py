"""Heal a queue (design 9): idempotent steps, any number of them side by side."""
