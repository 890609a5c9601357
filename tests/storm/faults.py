"""Does what a schedule says, each lane in a thread of its own, and undoes all of it at the end."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock
from tests.storm.schedule import NODES, WORKERS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.storm.dials import Dials
    from tests.storm.processes import Actor, Program
    from tests.storm.schedule import Fault, Schedule

LONGEST_S: Final = 180.0
"""After the storm's end the last fault is undone by then: a node's start on a busy machine."""


class Faults:
    """One storm's."""

    def __init__(
        self,
        ring: EmbeddedCassandra,
        actors: Mapping[str, Actor],
        dials: Mapping[str, Dials],
        driver: Program | None,
    ) -> None:
        self._ring = ring
        self._actors = actors
        self._dials = dials
        self._driver = driver
        self._lock = threading.Lock()
        self._began_s = 0.0
        self.done: list[str] = []

    def run(self, schedule: Schedule) -> None:
        """Return when the storm is over, and everybody runs and is told the right time again."""
        clock = SystemClock()
        self._began_s = clock.monotonic()
        lanes = schedule.lanes()
        with ThreadPoolExecutor(max(1, len(lanes)), thread_name_prefix="storm") as pool:
            running = [pool.submit(self._lane, faults) for faults in lanes.values()]
            for one in running:
                one.result(schedule.seconds + LONGEST_S)
        clock.wait(self._began_s + schedule.seconds - clock.monotonic())

    def _lane(self, faults: list[Fault]) -> None:
        clock = SystemClock()
        for fault in faults:
            clock.wait(self._began_s + fault.at_s - clock.monotonic())
            try:
                told = self._do(fault, clock) or ""
            except Exception:  # noqa: BLE001 - a lane that ends would end the storm: it is told
                told = traceback.format_exc()
            with self._lock:
                self.done.append(f"{fault}  {told}".rstrip())

    def _do(self, fault: Fault, clock: SystemClock) -> str | None:
        if fault.lane == NODES:
            self._to_nodes(fault, clock)
        elif fault.lane == WORKERS:
            return None if self._driver is None else self._driver.kill_worker(fault.targets[0])
        elif fault.kind is Kind.BUCKETS_AWAY:
            self._take_away(fault, clock)
        elif fault.kind in (Kind.SET_CLOCK, Kind.LOSE_ANSWERS):
            self._turn(fault, clock)
        else:
            self._to_actor(self._actors[fault.lane], fault, clock)
        return None

    def _to_nodes(self, fault: Fault, clock: SystemClock) -> None:
        nodes = [self._ring.nodes[number] for number in fault.targets]
        if fault.kind is Kind.NODE_CLOCK:
            self._set_node_clock(nodes[0].address, fault, clock)
            return
        for node in nodes:
            if fault.kind is Kind.KILL:
                node.kill()
            else:
                node.pause()
        clock.wait(fault.for_s)
        for node in nodes:
            if fault.kind is Kind.KILL:
                node.start()
            else:
                node.resume()

    def _set_node_clock(self, address: str, fault: Fault, clock: SystemClock) -> None:
        for dials in self._dials.values():
            dials.node_clock.set(address, fault.value)
        clock.wait(fault.for_s)
        for dials in self._dials.values():
            dials.node_clock.put_right()

    def _turn(self, fault: Fault, clock: SystemClock) -> None:
        dials = self._dials[fault.lane]
        if fault.kind is Kind.SET_CLOCK:
            dials.ahead_s = fault.value
        else:
            dials.loss = fault.value
        clock.wait(fault.for_s)
        if fault.kind is Kind.SET_CLOCK:
            dials.ahead_s = 0.0
        else:
            dials.loss = 0.0

    def _take_away(self, fault: Fault, clock: SystemClock) -> None:
        """The same buckets of all processes."""
        for dials in self._dials.values():
            dials.away = (fault.value, fault.targets[0])
        clock.wait(fault.for_s)
        for dials in self._dials.values():
            dials.away = (0.0, 0)

    @staticmethod
    def _to_actor(actor: Actor, fault: Fault, clock: SystemClock) -> None:
        if fault.kind is Kind.KILL:
            actor.kill()
            clock.wait(fault.for_s)
            actor.start()
        else:
            actor.pause()
            clock.wait(fault.for_s)
            actor.resume()
