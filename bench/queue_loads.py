"""What programs do with a queue, the same for ours and for each peer: rates, latency, history."""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench import report
from bench.bodies import difference
from bench.fleet import WorkFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.fleet import Done, Fleet

FSYNC = "each put is fsynced before it returns"
LATER = "a put returns before its fsync"
PHASES = ("put", "get and ack")
FIRST_DAY, AFTER, NEW = "first day", "after it", "a new queue then"
PAUSE_S = (0.2, 0.4)
WAIT_S = 10.0
_BULK = 1_000
_TRIES, _PROCESSES, _TURNS = 5, 4, 4
_KB = 1024
_APART = 1 << 40
"""Numbers of messages: each process has its own."""


@dataclass(frozen=True, slots=True)
class Side:
    """A queue that is measured.

    Attributes:
        name: In the results; and of its client in each process of the fleet.
        title: In tables.
        durability: What a put that has returned survives.
        create: Creates a queue, whose ``delete()`` removes it.
        most: The most messages that one call takes.
        source: Options of ``readStream``, without the queue, if it is a source of Spark.
    """

    name: str
    title: str
    durability: str
    version: str
    create: Callable[[str], Any]
    most: int = 10_000
    source: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: so many processes, each with so many messages at once, of one size."""

    size: int
    processes: int
    at_once: int

    @property
    def name(self) -> str:
        """In the results."""
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        how = "one at a time" if self.at_once == 1 else f"by {self.at_once}"
        return f"{size_name(self.size)}, {processes}, {how}"


def size_name(size: int) -> str:
    """Bytes as people say them."""
    return f"{size // _KB} KB" if size >= _KB else f"{size} B"


@dataclass(slots=True)
class Rates:
    """Samples of one side at one load, by phase; or why there are none."""

    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failure: str | None = None


class Loads:
    """All loads on one fleet. Each has a queue of its own."""

    def __init__(self, fleet: Fleet, *, seed: int) -> None:
        self._fleet = fleet
        self._seed = seed
        self._queues = 0

    # --- messages a second ------------------------------------------------------------------------

    def rates(
        self,
        sides: Sequence[Side],
        cells: Iterable[Cell],
        *,
        rounds: int,
        warm_up: int,
        seconds: float,
    ) -> dict[str, Any]:
        """By load, phase and side: messages a second. Sides take turns."""
        found: dict[str, dict[str, Any]] = {}
        failures: dict[str, dict[str, str]] = {}
        for cell in cells:
            rates = {side.name: Rates() for side in sides if cell.at_once <= side.most}
            began = perf_counter()
            for number in range(-warm_up, rounds):
                for side in sides:
                    into = rates.get(side.name)
                    if into is not None and into.failure is None:
                        self._round(side, cell, into, seconds, counts=number >= 0)
            by_phase = {
                phase: {
                    name: report.spread(one.samples[phase])
                    for name, one in rates.items()
                    if one.failure is None
                }
                for phase in PHASES
            }
            found[cell.name] = by_phase | {
                "samples": {name: dict(one.samples) for name, one in rates.items()}
            }
            failed = {name: one.failure for name, one in rates.items() if one.failure}
            if failed:
                failures[cell.name] = failed
            _say(f"{cell.name}: {perf_counter() - began:.0f} s {failed or ''}")
        return {"rates": found, "failures": failures}

    def _round(self, side: Side, cell: Cell, into: Rates, seconds: float, *, counts: bool) -> None:
        queue = self._new_queue(side)
        bodies = (cell.size, self._seed)
        try:
            put = self._fleet.run(
                self._put(side, queue.name, cell.processes, cell, seconds=seconds)
            )
            taking = self._ask(side, "drain", queue.name, bodies=bodies)
            got = self._fleet.run(
                [{**taking, "prefetch": cell.at_once, "seconds": seconds}] * cell.processes
            )
            rest = self._rest(side, taking, len(put.put) - len(got.ids))
            _must_agree(put.put, got.ids + rest)
        except (WorkFailed, CountsDiffer) as error:
            into.failure = str(error)
            return
        finally:
            queue.close()
        if counts:
            into.samples[PHASES[0]].append(len(put.put) / put.seconds)
            into.samples[PHASES[1]].append((len(got.ids) / got.seconds) if got.ids else 0.0)

    # --- latency ----------------------------------------------------------------------------------

    def latency(
        self,
        sides: Sequence[Side],
        *,
        samples: int,
        cycles: int,
        warm_up: int,
        turns: int,
        size: int,
    ) -> dict[str, Any]:
        """From the beginning of a put to the return of a get that waits, by side; in turns.

        Args:
            cycles: Messages that each side has put, got and acked before.
            warm_up: Delays of each turn that do not count.
        """
        took: dict[str, list[float]] = {side.name: [] for side in sides}
        failures: dict[str, str] = {}
        each = -(-samples // turns) + warm_up
        for turn in range(turns):
            for side in (one for one in sides if one.name not in failures):
                try:
                    if turn == 0:
                        self._cycle(side, cycles, size)
                    took[side.name] += self._delays(side, each, size)[warm_up:]
                except (WorkFailed, CountsDiffer) as error:
                    failures[side.name] = str(error)
        return {
            "latency_ms": {
                side: _percentiles(each) for side, each in took.items() if side not in failures
            },
            "latency_samples_s": took,
            "latency_failures": failures,
        }

    def _cycle(self, side: Side, calls: int, size: int) -> None:
        queue = self._new_queue(side)
        how = {"calls": calls, "at_once": 1, "size": size, "seed": self._seed}
        try:
            self._fleet.run([self._ask(side, "cycle", queue.name, **how)])
        finally:
            queue.close()

    def _delays(self, side: Side, samples: int, size: int) -> list[float]:
        queue = self._new_queue(side)
        bodies = (size, self._seed)
        try:
            done = self._fleet.run(
                [
                    self._ask(
                        side, "catch", queue.name, samples=samples, bodies=bodies, wait=WAIT_S
                    ),
                    self._ask(
                        side,
                        "drip",
                        queue.name,
                        samples=samples,
                        size=size,
                        seed=self._seed,
                        pause_s=PAUSE_S,
                    ),
                ]
            )
        finally:
            queue.close()
        _must_agree(done.put, done.ids)
        return [done.at["got"][number] - began for number, began in done.at["put"].items()]

    # --- history ----------------------------------------------------------------------------------

    def history(
        self, side: Side, *, messages: int, times: int, processes: int, size: int, cycles: int
    ) -> dict[str, Any]:
        """What each call costs on the first day, beside a backlog, and after it was drained.

        After it, the calls of a new queue are timed in turns with those of this one: a server that
        has worked for minutes is slower, or warmer, than on the first day for any queue.
        """
        queue, new = self._new_queue(side), self._new_queue(side)
        put, got = array("q"), array("q")
        at_once = min(_BULK, side.most)
        taking = self._ask(side, "drain", queue.name, bodies=(size, self._seed))
        moments: dict[str, Done] = {}
        seconds: dict[str, float] = {}

        numbers = count(64 * _APART, _APART)

        def probe(moment: str, of: _Named, times: int, *, idle: bool = True) -> None:
            done = self._fleet.run(
                [
                    self._ask(
                        side,
                        "probe",
                        of.name,
                        times=times,
                        size=size,
                        seed=self._seed,
                        first=next(numbers),
                        idle=idle,
                        source=side.source,
                    )
                ]
            )
            if moment in moments:
                moments[moment].merge(done)
            else:
                moments[moment] = done
            put.extend(done.put)
            got.extend(done.ids)

        try:
            self._cycle(side, cycles, size)
            for moment in ("warm-up", FIRST_DAY):
                probe(moment, queue, times)
            cell = Cell(size, processes, at_once)
            filled = self._fleet.run(
                self._put(side, queue.name, processes, cell, messages=messages // processes)
            )
            put.extend(filled.put)
            seconds["put"] = filled.seconds
            probe("beside the backlog", queue, times, idle=False)
            drained = self._fleet.run([{**taking, "prefetch": at_once}] * processes)
            got.extend(drained.ids)
            seconds["get and ack"] = drained.seconds
            got.extend(self._rest(side, taking, len(put) - len(got)))
            probe("warm-up", new, times)
            for _ in range(_TURNS):
                for moment, of in ((AFTER, queue), (NEW, new)):
                    probe(moment, of, -(-times // _TURNS))
            _must_agree(put, got)
        except (WorkFailed, CountsDiffer) as error:
            return {"failure": str(error)}
        finally:
            queue.close()
            new.close()
        del moments["warm-up"]
        return {"messages": len(filled.put), "seconds": seconds} | _costs(moments)

    # --- what they have in common -----------------------------------------------------------------

    def _new_queue(self, side: Side) -> _Named:
        self._queues += 1
        name = f"bench{self._queues}"
        return _Named(name, side.create(name))

    @staticmethod
    def _ask(side: Side, work: str, queue: str, **how: Any) -> dict[str, Any]:
        return {"client": side.name, "work": work, "queue": queue, **how}

    def _put(
        self, side: Side, queue: str, processes: int, cell: Cell, **until: Any
    ) -> list[dict[str, Any]]:
        asked = self._ask(
            side, "put", queue, at_once=cell.at_once, size=cell.size, seed=self._seed, **until
        )
        return [{**asked, "first": at * _APART} for at in range(processes)]

    def _rest(self, side: Side, taking: dict[str, Any], missing: int) -> array[int]:
        """Take what is left, untimed: nobody waits for the last messages of a timed load."""
        found = array("q")
        processes = min(self._fleet.size, _PROCESSES)
        for _ in range(_TRIES):
            if len(found) >= missing:
                break
            asked = {**taking, "prefetch": min(_BULK // 10, side.most)}
            found.extend(self._fleet.run([asked] * processes).ids)
        return found


class CountsDiffer(Exception):
    """What came out is not what went in, so there is no figure."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A queue for one load."""

    name: str
    queue: Any

    def close(self) -> None:
        """Remove it."""
        self.queue.delete()


def _must_agree(put: array[int], got: array[int]) -> None:
    if (differs := difference(put, got)) is not None:
        raise CountsDiffer(differs)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(one * 1e3 for one in seconds)
    return {
        "p50": median(ordered),
        "p99": ordered[round(0.99 * (len(ordered) - 1))],
        "least": ordered[0],
        "most": ordered[-1],
    }


def _costs(moments: dict[str, Done]) -> dict[str, Any]:
    """Of each call: milliseconds and statements at each moment, and two ratios.

    One is to the first day; the other, after the history, to a new queue in the same minute.
    """
    medians = {
        moment: {call: median(each) for call, each in done.samples.items()}
        for moment, done in moments.items()
    }
    return {
        "ms": {
            moment: {
                call: report.spread([one * 1e3 for one in each])
                for call, each in done.samples.items()
            }
            for moment, done in moments.items()
        },
        "of_first_day": {
            moment: _ratios(each, medians[FIRST_DAY])
            for moment, each in medians.items()
            if moment != FIRST_DAY
        },
        "of_new_queue": _ratios(medians[AFTER], medians[NEW]),
        "statements": {
            moment: {call: total / len(done.samples[call]) for call, total in done.each.items()}
            for moment, done in moments.items()
        },
        "samples_s": {moment: done.samples for moment, done in moments.items()},
    }


def _ratios(each: dict[str, float], of: dict[str, float]) -> dict[str, float]:
    return {call: seconds / of[call] for call, seconds in each.items()}


def _say(text: str) -> None:
    print(text, file=sys.stderr)
