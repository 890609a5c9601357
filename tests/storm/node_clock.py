"""A dial of a process: which node tells it a wrong time, and how wrong; others turn it."""

from __future__ import annotations

import mmap
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cassieq_spark import clock

if TYPE_CHECKING:
    from collections.abc import Collection

    from cassieq_spark.clock import Answers, Ask, Clock

MEASURE_EVERY_S: Final = 2.0
"""A storm is over in less than the minute after which a client asks its nodes again."""

_VALUES: Final = struct.Struct("15pd")


class NodeClock:
    """A file of an address and of seconds that all who opened it see at once."""

    def __init__(self, path: Path) -> None:
        """Nobody's is wrong where the file is new."""
        with path.open("a+b") as file:
            if file.tell() < _VALUES.size:
                file.write(_VALUES.pack(b"", 0.0))
                file.flush()
            self._values = mmap.mmap(file.fileno(), _VALUES.size)

    def set(self, address: str, ahead_s: float) -> None:
        """From now on this node, and no other, tells a time that is so much wrong."""
        _VALUES.pack_into(self._values, 0, address.encode(), ahead_s)

    def put_right(self) -> None:
        """All tell the time as it is."""
        self.set("", 0.0)

    def falsified(self, ask: Ask) -> Ask:
        """What nodes say, but for that one."""

        async def asked(base: Clock, but: Collection[str]) -> Answers:
            answers = await ask(base, but)
            address, ahead_s = _VALUES.unpack_from(self._values)
            readings = tuple(
                replace(one, there_us=one.there_us + int(ahead_s * 1e6))
                if one.node.encode() == address
                else one
                for one in answers.readings
            )
            return replace(answers, readings=readings)

        return asked


def measure_often() -> None:
    """In this process, which is a storm's own."""
    clock.MEASURE_EVERY_S = MEASURE_EVERY_S  # type: ignore[misc]  # final elsewhere
