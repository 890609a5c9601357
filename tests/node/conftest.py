"""What tests on the node share: a queue's door, and the command with a queue of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import CommandLine
from tests.fixtures.queues import door, keyspace, open_door, still_time

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra

__all__ = ["door", "keyspace", "open_door", "still_time"]


@pytest.fixture
def cli(cassandra: EmbeddedCassandra) -> CommandLine:
    """The command, at the node."""
    return CommandLine(cassandra.contact_points)


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    """For commands: what was got stays held, and what was put is visible at once."""
    return client.create_queue(queue_name, visibility_timeout=600, linger=0)
