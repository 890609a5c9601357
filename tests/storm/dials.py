"""Dials of a process that others turn while it runs: how wrong its wall clock is, how many of its
CAS are not answered, and which buckets it cannot reach."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cassandra import OperationTimedOut, Unavailable

from cassieq_spark.clock import ClusterClock, SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.store import portal
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import Kind, every_statement
from tests.fixtures.faults import Fault, FaultyStore, partition_of
from tests.fixtures.transports import intercept
from tests.storm.node_clock import NodeClock, measure_often

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.store.statements import Statement
    from tests.storm.history import Recorder

VARIABLE: Final = "STORM_DIALS"
"""Names the file for processes that are started with nothing else of ours: Spark's workers."""

LATEST_S: Final = 3.0
"""A CAS that is on its way lands by then."""

_VALUES: Final = struct.Struct("dd")
_AWAY: Final = struct.Struct("dd")
"""Behind the others: the share of buckets that are away, and the salt they are drawn by."""

_LOOK_EVERY_S: Final = 0.1
"""A process that loses no answers looks so often whether buckets are away."""

_LWTS: Final = [one.name for one in every_statement() if one.kind is Kind.CAS]
_installed: list[str] = []
_LOSSES: Final = (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE)


class Dials:
    """A file of numbers that all who opened it see at once.

    Attributes:
        node_clock: Whose clock is wrong, of the nodes.
    """

    def __init__(self, path: str | Path) -> None:
        """All at zero where the file is new."""
        size = _VALUES.size + _AWAY.size
        with Path(path).open("a+b") as file:
            if file.tell() < size:
                file.write(bytes(size - file.tell()))
                file.flush()
            self._values = mmap.mmap(file.fileno(), size)
        self.node_clock = NodeClock(Path(f"{path}.node"))

    @property
    def ahead_s(self) -> float:
        """So much is the wall clock wrong."""
        return float(_VALUES.unpack_from(self._values)[0])

    @ahead_s.setter
    def ahead_s(self, value: float) -> None:
        _VALUES.pack_into(self._values, 0, value, self.loss)

    @property
    def loss(self) -> float:
        """The share of CAS that are not answered."""
        return float(_VALUES.unpack_from(self._values)[1])

    @loss.setter
    def loss(self, value: float) -> None:
        _VALUES.pack_into(self._values, 0, self.ahead_s, value)

    @property
    def away(self) -> tuple[float, int]:
        """The share of buckets that this process cannot reach, and the salt they are drawn by."""
        share, salt = _AWAY.unpack_from(self._values, _VALUES.size)
        return share, int(salt)

    @away.setter
    def away(self, value: tuple[float, int]) -> None:
        _AWAY.pack_into(self._values, _VALUES.size, *value)

    def refuse(self, statement: Statement, params: tuple[Any, ...]) -> None:
        """Raise what the driver raises where a bucket's partition has no quorum."""
        share, salt = self.away
        key = partition_of(statement, params) if share else None
        if key is None:
            return
        drawn = zlib.crc32(f"{salt}:{key[0]}:{key[1]}".encode())
        if drawn / 2**32 < share:
            if drawn % 2:
                raise Unavailable(f"{statement.name}: no quorum for bucket {key[1]}")
            raise OperationTimedOut(f"{statement.name}: no answer for bucket {key[1]}")


class WrongClock(SystemClock):
    """This machine's, set wrong. Monotonic time is right: nobody can set that."""

    def __init__(self, dials: Dials) -> None:
        self._dials = dials

    def now_us(self) -> int:
        return super().now_us() + int(self._dials.ahead_s * 1e6)


class LosingStore(FaultyStore):
    """Draws for each CAS whether it is answered; what is late lands by itself."""

    def __init__(self, dials: Dials, seed: int, record: Recorder | None) -> None:
        super().__init__()
        self._dials = dials
        self._record = record
        self._random = generator(seed)
        self._title = f"seed={seed}"

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        """See `FaultyStore`."""
        self._dials.refuse(statement, params)
        if statement.kind is not Kind.CAS:
            return proceed()
        return super().around(statement, params, proceed)

    def _drawn(self, name: str) -> Fault | None:  # noqa: ARG002 - of any name
        assert self._random is not None
        if self._random.random() >= self._dials.loss:
            return None
        return self._random.choice(_LOSSES)

    def _fail(self, fault: Fault, name: str, proceed: Callable[[], Any]) -> Any:
        if self._record is not None:
            self._record.say("unanswered", statement=name, how=fault.value)
        if fault is Fault.LATE:
            assert self._random is not None
            landing = threading.Timer(self._random.uniform(0.05, LATEST_S), _land, (proceed,))
            landing.daemon = True
            landing.start()
            fault = Fault.TIMEOUT_BEFORE
        return super()._fail(fault, name, proceed)


class PartlyAway:
    """An interceptor that is there while some buckets are away: with one, reads go one by one."""

    def __init__(self, dials: Dials) -> None:
        self._dials = dials

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        """See `tests.fixtures.transports.Interceptor`."""
        self._dials.refuse(statement, params)
        return proceed()

    def watch(self, session: CqlSession) -> None:
        """Be there when it is needed; never returns."""
        while True:
            intercept(session, self if self._dials.away[0] else None)
            SystemClock().wait(_LOOK_EVERY_S)


def install(
    path: str | Path, seed: int, *, loses: bool = True, record: Recorder | None = None
) -> None:
    """From now on every session of this process has this clock, and loses these answers.

    One that loses sends its statements one at a time: some processes should not.
    """
    dials = Dials(path)
    connect = CqlSession.__init__
    measure_often()

    def connect_with_dials(self: CqlSession, options: ConnectionOptions) -> None:
        connect(self, options)
        told = dials.node_clock.falsified(self.node_clocks)
        self.clock = ClusterClock(WrongClock(dials), told, spawn=portal.start)
        portal.run(self.clock.settle())
        if loses:
            intercept(self, LosingStore(dials, seed, record))
        else:
            watching = PartlyAway(dials)
            threading.Thread(target=watching.watch, args=(self,), daemon=True).start()

    CqlSession.__init__ = connect_with_dials  # type: ignore[method-assign]  # of a child only


def install_by_variable() -> None:
    """As the environment says; once a process, however often it is called."""
    path = os.environ.get(VARIABLE)
    if path is not None and not _installed:
        _installed.append(path)
        install(path, os.getpid())


def _land(proceed: Callable[[], Any]) -> None:
    try:
        proceed()
    except Exception:  # noqa: BLE001 - nobody waits for it: it is lost in the end, or refused
        return
