"""Inject lost answers, late writes and forced interleavings between the driver and a real store."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter, deque
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from cassandra import InvalidRequest, OperationTimedOut, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cassieq_spark.store.session import CqlSession
    from cassieq_spark.store.statements import Statement

GATE_DEADLINE_S: Final = 30.0
"""A gate that does not fill by then breaks: this ends a hung test, and no test expects it."""


class Fault(StrEnum):
    """The fault of one statement."""

    REFUSE = "refuse"
    """The server looks at it and refuses to run it: a definite answer."""

    TIMEOUT_BEFORE = "timeout_before"
    """It is lost on its way, and never applied."""

    TIMEOUT_AFTER = "timeout_after"
    """It is applied, its answer is lost."""

    LATE = "late"
    """It stays on its way, unanswered; it is applied when the test calls `FaultyStore.land`."""


class Away(StrEnum):
    """How a bucket with too few replicas behaves."""

    UNAVAILABLE = "unavailable"
    """The coordinator knows it, and says so at once."""

    TIMES_OUT = "times out"
    """The coordinator does not know it: statements are not answered. Callers time out at once."""

    STANDS_STILL = "stands still"
    """As `TIMES_OUT`, but callers wait until the bucket is reachable; what they sent is lost."""


class Gate:
    """Holds callers just before a statement until all of them are there."""

    def __init__(self, callers: int) -> None:
        self._barrier = threading.Barrier(callers)
        self._places = callers
        self._lock = threading.Lock()

    def pass_through(self) -> None:
        """Wait for the others; a caller beyond the last place goes straight on.

        Raises:
            threading.BrokenBarrierError: They did not come.
        """
        with self._lock:
            self._places -= 1
            has_place = self._places >= 0
        if has_place:
            self._barrier.wait(GATE_DEADLINE_S)


class FaultyStore:
    """An `Interceptor` with a schedule: by hand per statement name, or drawn from a seed.

    Statements without an entry go through. Thread-safe. The schedule and what was sent are in
    ``str(faults)``, and a block that fails inside `on` carries them as a note.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: dict[tuple[str, int], Fault | Callable[[], object]] = {}
        self._gates: dict[str, Gate] = {}
        self._seen: Counter[str] = Counter()
        self._away: dict[tuple[object, int], Away] = {}
        self._is_back = threading.Condition(self._lock)
        self._on_their_way: deque[tuple[str, Callable[[], Any]]] = deque()
        self._random: random.Random | None = None
        self._rates: dict[str, tuple[Fault, ...]] = {}
        self._rate = 0.0
        self._title = "by hand"
        self._history: list[str] = []

    @classmethod
    def seeded(
        cls,
        seed: int,
        names: Iterable[str],
        *,
        rate: float,
        faults: tuple[Fault, ...] = (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER),
    ) -> FaultyStore:
        """A store that draws: each statement of these names fails with probability ``rate``.

        With one thread, the same seed gives the same faults.
        """
        faulty = cls()
        faulty._random = random.Random(seed)  # noqa: S311 - reproducible on purpose
        faulty._rates = dict.fromkeys(names, faults)
        faulty._rate = rate
        faulty._title = f"seed={seed} rate={rate}"
        return faulty

    def plan(self, name: str, fault: Fault, *, after: int = 0, times: int = 1) -> None:
        """Let the next ``times`` statements of that name fail, when ``after`` more have passed."""
        with self._lock:
            first = self._seen[name] + after + 1
            for at in range(first, first + times):
                self._plan[name, at] = fault

    def before(self, name: str, action: Callable[[], object], *, after: int = 0) -> None:
        """Run ``action`` once, in the caller's thread, just before a statement of that name."""
        with self._lock:
            self._plan[name, self._seen[name] + after + 1] = action

    def park(self, name: str, callers: int) -> None:
        """Hold the next ``callers`` statements of that name until all of them are there."""
        with self._lock:
            self._gates[name] = Gate(callers)

    def unreachable(self, *buckets: int, lane: object = None, how: Away = Away.TIMES_OUT) -> None:
        """From now on no statement on the partitions of these buckets is answered, or applied.

        Their rows, messages and overlays have one partition key, and so the same replicas. All else
        is elsewhere: pointers, hints, sinks.

        Args:
            lane: Only of this lane; None: of every lane.
        """
        with self._lock:
            self._away.update(dict.fromkeys([(lane, bucket) for bucket in buckets], how))

    def reachable(self) -> None:
        """Make all buckets reachable again."""
        with self._lock:
            self._away.clear()
            self._is_back.notify_all()

    def land(self) -> int:
        """Apply every statement still on its way, oldest first; return how many there were."""
        landed = 0
        while True:
            with self._lock:
                if not self._on_their_way:
                    return landed
                name, proceed = self._on_their_way.popleft()
                self._history.append(f"{name}: landed late")
            proceed()
            landed += 1

    def around(
        self,
        statement: Statement,
        params: tuple[Any, ...],
        proceed: Callable[[], Any],
    ) -> Any:
        """See `cassieq_spark.store.sent.Interceptor`."""
        name = statement.name
        with self._lock:
            self._seen[name] += 1
            planned = self._plan.pop((name, self._seen[name]), None) or self._drawn(name)
            gate = self._gates.get(name)
            told = planned.value if isinstance(planned, Fault) else "an action before it"
            if planned is not None:
                self._history.append(f"{name} #{self._seen[name]}: {told}")
        if gate is not None:
            gate.pass_through()
        self._check_reachable(statement, params)
        if planned is None:
            return proceed()
        if not isinstance(planned, Fault):
            planned()
            return proceed()
        return self._fail(planned, name, proceed)

    @contextmanager
    def on(self, session: CqlSession) -> Iterator[FaultyStore]:
        """Work on this session inside the block; an error there carries the schedule as a note."""
        session.interceptor = self
        try:
            yield self
        except BaseException as error:
            error.add_note(str(self))
            raise
        finally:
            session.interceptor = None

    def __str__(self) -> str:
        """The schedule: where it comes from, what is left of it, what it did."""
        with self._lock:
            left = [
                f"{name} #{at}: {fault.value if isinstance(fault, Fault) else 'an action'}"
                for (name, at), fault in sorted(self._plan.items(), key=lambda item: item[0])
            ]
            return "\n  ".join(
                [
                    f"faults ({self._title})",
                    *(f"done  {line}" for line in self._history),
                    *(f"to do {line}" for line in left),
                ]
            )

    def _check_reachable(self, statement: Statement, params: tuple[Any, ...]) -> None:
        key = partition_of(statement, params)
        if key is None:
            return
        bucket = key[1]
        with self._lock:
            how = self._away.get(key) or self._away.get((None, bucket))
            if how is None:
                return
            self._history.append(f"{statement.name}: bucket {bucket} {how.value}")
            if how is Away.STANDS_STILL:
                self._is_back.wait_for(lambda: not self._away, GATE_DEADLINE_S)
        if how is Away.UNAVAILABLE:
            raise Unavailable(f"{statement.name}: no quorum for bucket {bucket}")
        raise OperationTimedOut(f"{statement.name}: no answer for bucket {bucket}")

    def _drawn(self, name: str) -> Fault | None:
        if self._random is None or name not in self._rates:
            return None
        if self._random.random() >= self._rate:
            return None
        return self._random.choice(self._rates[name])

    def _fail(self, fault: Fault, name: str, proceed: Callable[[], Any]) -> Any:
        if fault is Fault.REFUSE:
            raise InvalidRequest(f"{name} was refused by a fault of the test")
        if fault is Fault.TIMEOUT_AFTER:
            proceed()
        if fault is Fault.LATE:
            with self._lock:
                self._on_their_way.append((name, proceed))
        raise OperationTimedOut(f"{name}: {fault.value}")


def partition_of(statement: Statement, params: tuple[Any, ...]) -> tuple[Any, int] | None:
    """(lane, bucket) of the bucket whose partition a statement is on; None if it is on none."""
    at = _key_at(statement.cql)
    return None if at is None else (params[at], int(params[at + 1]))


@cache
def _key_at(cql: str) -> int | None:
    """Which parameter of a statement is ``lane``, if ``lane, bucket`` is the partition key."""
    if re.search(r"\{ks\}\.(bucket|message|overlay)\b", cql) is None or "?" not in cql:
        return None
    if cql.startswith("INSERT"):
        return 0
    before, found, _ = cql.partition("lane = ? AND bucket = ?")
    return before.count("?") if found else None
