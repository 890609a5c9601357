"""Heal a queue by idempotent steps, any number of them side by side (docs/design/repair.md)."""
