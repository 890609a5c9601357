"""Repairs or redrives once, and gets SIGKILL just before its n-th write; says which each was."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from cassieq_spark.store.statements import Kind
from cassieq_spark.testing import ManualClock
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.store.statements import Statement

BEGUN = "begun: "
"""Before the name of each write; other lines are the package's log."""

WRITES = (Kind.WRITE, Kind.CAS)


class Killer:
    """An `Interceptor`: nothing runs any more when so many writes were begun."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._begun = 0
        self._lock = threading.Lock()

    def around(
        self,
        statement: Statement,
        params: tuple[Any, ...],  # noqa: ARG002 - the protocol has it
        proceed: Callable[[], Any],
    ) -> Any:
        """See `tests.fixtures.transports.Interceptor`."""
        if statement.kind in WRITES:
            with self._lock:
                self._begun += 1
                os.write(1, f"{BEGUN}{statement.name}\n".encode())
                if self._begun == self._at:
                    os.kill(os.getpid(), signal.SIGKILL)
                    signal.pause()  # it may take a moment: nobody gets the lock in it
        return proceed()


def main(
    *, contact_points: str, keyspace: str, ahead_s: float, redrives: str | None, at: int
) -> None:
    """By a clock that is so far ahead; ``at`` 0: to its end."""
    client = cassieq.connect(contact_points, keyspace=keyspace)
    clock = ManualClock(client._store.clock)
    clock.advance(ahead_s)
    client._store.clock = clock
    intercept(client._session, Killer(at))
    report = client.repair() if redrives is None else client.redrive(redrives)
    assert [] == report.problems
