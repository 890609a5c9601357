"""Use the asyncio client first of all in a coroutine; print what the event loop's thread imported.

first_use_on_loop.py CONTACT_POINTS KEYSPACE QUEUE
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Noting:
    """A finder that finds nothing, and notes what one thread asks for."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.names: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        del path, target
        if threading.get_ident() == self.thread:
            self.names.append(name)
        return None


async def use(contact_points: str, keyspace: str, name: str) -> None:
    """Everything that a first program does."""
    import cassieq_spark as cassieq  # noqa: PLC0415 - the point of this

    async with cassieq.connect_async(contact_points, keyspace=keyspace) as client:
        await client.bootstrap()
        queue = await client.create_queue(name, linger=0)
        await queue.put_many([b"one", b"two"], headers={"k": "v"})
        (message,) = await queue.get(1, wait=5)
        await queue.ack(message)
        async with queue.consumer(idle_timeout=0.1) as consumer:
            async for other in consumer:
                await consumer.ack(other)
        assert (await queue.stats()).total == 0


noting = Noting()
sys.meta_path.insert(0, noting)
asyncio.run(use(*sys.argv[1:]))
# To ask where a module is, as the package does for its table of names, is no import.
sys.stdout.write(json.dumps([name for name in noting.names if name in sys.modules]))
