"""All code that talks to Cassandra: sessions, statements, tagged CAS, tables, chunks."""

from __future__ import annotations

import importlib.util
import sys

if importlib.util.find_spec("twisted") is None:
    # `cassandra.cluster` tries its reactor for Twisted, which imports asyncio, wrapt and more
    # before it finds no Twisted: 80 ms of CPU in each process (driver 3.30, two cores). This entry
    # lets that import fail at once, as it would anyway.
    sys.modules.setdefault("cassandra.io.twistedreactor", None)  # type: ignore[arg-type]  # PEP 328
