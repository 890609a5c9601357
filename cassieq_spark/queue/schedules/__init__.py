"""Put messages again and again, each exactly once (docs/design/schedules.md)."""
