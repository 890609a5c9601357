"""Two dials of a process that others turn while it runs: how wrong its wall clock is, and how many
of its CAS are not answered."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.clock import ClusterClock, SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import Kind, every_statement
from cassieq_spark.testing.faults import Fault, FaultyStore
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
_LWTS: Final = [one.name for one in every_statement() if one.kind is Kind.CAS]
_installed: list[str] = []
_LOSSES: Final = (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE)


class Dials:
    """A file of two numbers that all who opened it see at once.

    Attributes:
        node_clock: Whose clock is wrong, of the nodes.
    """

    def __init__(self, path: str | Path) -> None:
        """Both at zero where the file is new."""
        with Path(path).open("a+b") as file:
            if file.tell() < _VALUES.size:
                file.write(_VALUES.pack(0.0, 0.0))
                file.flush()
            self._values = mmap.mmap(file.fileno(), _VALUES.size)
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
        self.clock = ClusterClock(WrongClock(dials), dials.node_clock.falsified(self.node_clocks))
        if loses:
            self.interceptor = LosingStore(dials, seed, record)

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
