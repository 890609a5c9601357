"""Tools for tests of programs that use queues.

    from cassieq_spark.testing import memory_client

    with memory_client() as client:         # queues in memory: nothing to install or start
        queue = client.create_queue("orders")
        client.clock.advance(31)            # leases run out, delays end

Its names:

    memory_client       opens a client on queues in memory; with pytest, fixture ``cassieq_memory``
    MemoryClient, MemoryClock   what it returns, and its clock
    EmbeddedCassandra   real nodes on this machine, which can be killed and paused
    ManualClock         a clock that a test turns, for a program that takes one
    wait_until          waits until something has become true
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.lazy import offer as _offer

if TYPE_CHECKING:
    from cassieq_spark.testing.api import *  # noqa: F403 - the table of names
else:  # as in cassieq_spark
    __getattr__, __dir__, __all__ = _offer(__name__)
