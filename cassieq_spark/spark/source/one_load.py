"""Refuse a query that reads one ``load()`` twice, as a self-join does: it would be two consumers.

Spark gives each side of a self-join a source of its own, so the first one would lease what both are
to read. A planner does not learn its query, but the load, which both sides share (4.2, 4.3).
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

FILE: Final = "cassieq-loads"
"""In the folder of a Spark application. Each load locks a byte of it, and writes nothing."""

BYTES: Final = 1 << 62

LOOKS_EVERY_S: Final = 0.01
"""How late a source may learn that it is alone. What it waits for is the lock, and its end is
`STARTS_WITHIN_S`; nothing else depends on this value."""

STARTS_WITHIN_S: Final = 10.0
"""After this, two sources that might be of two queries are taken for two of one query."""


TWICE: Final = (
    "this query reads one load() twice, as a self-join does. Each side would be a "
    "consumer of its own, and get messages that the other one does not get. Join in "
    "foreachBatch, where both sides are the same batch; or write the messages to a "
    "table and join that; or call load() twice, for two queues. If another query of "
    "this DataFrame was starting at the same time, start this one again"
)


class OneLoad:
    """The place of a source among those of its load, while its query starts.

    Spark asks all sources of a query for their limits, one after the other, before it asks any of
    them for an offset. In between, a source holds a shared lock. One that is asked for its limits
    while another holds it is of the same query, if the other is not asked for an offset meanwhile:
    the query would have to answer for both. Otherwise two queries start at the same time.
    """

    def __init__(self, load: UUID) -> None:
        self._byte = load.int % BYTES
        self._file: int | None = None

    @contextmanager
    def asked_for_limits(self) -> Iterator[None]:
        """Wrap each call by which Spark prepares a query.

        Raises:
            UsageError: Another source of this query reads the same load.
        """
        with suppress(OSError):  # a place without locks: a query is not refused for that
            self._file = _open() if self._file is None else self._file
            self._lock(fcntl.LOCK_UN)
            self._await_others()
        yield
        with suppress(OSError):
            self._lock(fcntl.LOCK_SH)

    def starts(self) -> None:
        """Note that Spark has asked for something else, so that all sources have been prepared."""
        if self._file is not None:
            os.close(self._file)  # with its lock
            self._file = None

    def _await_others(self) -> None:
        """Wait until no other source of the load is between its preparation and its start."""
        clock = SystemClock()
        until_s = clock.monotonic() + STARTS_WITHIN_S
        while not self._is_alone():
            if clock.monotonic() > until_s:
                raise UsageError(TWICE)
            clock.wait(LOOKS_EVERY_S)
        self._lock(fcntl.LOCK_UN)

    def _is_alone(self) -> bool:
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process holds a lock of the byte
            return False
        return True

    def _lock(self, how: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, how, 1, self._byte)


def _open() -> int:
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return os.open(Path(folder) / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
