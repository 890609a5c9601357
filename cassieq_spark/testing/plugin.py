"""The pytest plugin: the fixture ``cassieq_memory``. Its imports are light until a test uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cassieq_spark.testing.memory import MemoryClient


@pytest.fixture
def cassieq_memory() -> Iterator[MemoryClient]:
    """A client on queues in memory; see `cassieq_spark.testing.memory_client`."""
    from cassieq_spark.testing.memory import memory_client  # noqa: PLC0415 - half a second

    with memory_client() as client:
        yield client
