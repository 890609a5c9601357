"""The queue that tests of the Spark side share no part of."""

from __future__ import annotations

from tests.fixtures.queues import door, keyspace, open_door, still_time
from tests.fixtures.streams import busy_client, streams

__all__ = ["busy_client", "door", "keyspace", "open_door", "still_time", "streams"]
