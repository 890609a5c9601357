"""Settle deliveries: ack, release, extend, update and reject, by receipt or by lease."""
