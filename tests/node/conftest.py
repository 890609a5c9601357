"""The queue that tests of store and queue share no part of."""

from __future__ import annotations

from tests.fixtures.queues import door, keyspace, open_door, still_time

__all__ = ["door", "keyspace", "open_door", "still_time"]
