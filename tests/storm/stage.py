"""What outlives a seed: the ring's keyspace, a client, the zygote and the Spark driver."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import cassieq_spark as cassieq
from cassieq_spark.testing import wait_until
from tests.fixtures.spark import environment
from tests.fixtures.zygote import Zygote
from tests.storm import dials
from tests.storm.processes import ROOT, Program
from tests.storm.schedule import Cast

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

KEYSPACE: Final = "cassieq_storm"
MODULES: Final = tuple(f"tests.children.{name}" for name in ("producer", "consumer", "repairer"))
REPAIR_JOB_EVERY: Final = 4
"""One seed in so many has the Spark repair job, too: a third JVM is much for two cores."""

READY_S: Final = 240.0


def lanes_of(seed: int) -> dict[str, int]:
    """Half of the seeds have queues with several lanes, half of those without a share for low
    classes: then it is known in which order messages come."""
    lanes = {"priorities": 2, "shards": 2} if seed % 2 else {"priorities": 1, "shards": 1}
    return {**lanes, "fairness": 0} if seed % 4 == 1 else lanes


def cast_of(seed: int, *, has_spark: bool) -> Cast:
    """Who is in the storm of this seed: of the seed alone, so that it can be run again."""
    return Cast(has_spark=has_spark, has_repair_job=has_spark and seed % REPAIR_JOB_EVERY == 0)


@dataclass(slots=True)
class Stage:
    """Made once for all seeds; a context manager.

    Attributes:
        keeps_all: The histories of green seeds stay, too.
        driver: The Spark driver; None: a storm of Python processes only.
    """

    ring: EmbeddedCassandra
    directory: Path
    has_spark: bool = True
    keeps_all: bool = False
    _stack: ExitStack | None = None
    _zygote: Zygote | None = None
    _client: cassieq.Client | None = None
    driver: Program | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._client = stack.enter_context(
                cassieq.connect(self.ring.contact_points, keyspace=KEYSPACE)
            )
            nodes = len(self.ring.nodes)
            self._client.bootstrap(
                {"class": "NetworkTopologyStrategy", self.ring.datacenter: nodes}
            )
            self._zygote = Zygote(MODULES, self.directory, ROOT)
            stack.callback(self._zygote.kill)
            if self.has_spark:
                self.driver = self._start_driver()
                stack.callback(self.driver.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._stack is not None
        self._stack.close()

    @property
    def client(self) -> cassieq.Client:
        """The runner's own: nobody hurts it, and its clock is right."""
        assert self._client is not None
        return self._client

    @property
    def zygote(self) -> Zygote:
        """Forks the Python children."""
        assert self._zygote is not None
        return self._zygote

    @property
    def driver_dials(self) -> Path:
        """Of the Spark driver and its workers."""
        return self.directory / "driver.dials"

    def spark_environment(self, dials_file: Path) -> dict[str, str]:
        """Variables of a process that starts Spark."""
        return {
            **environment(),
            "PYTHONPATH": str(ROOT),
            dials.VARIABLE: str(dials_file),
        }

    def repair_job(self, directory: Path, queues: list[str]) -> Program:
        """``jobs/repair.py`` every second, over these queues."""
        log = directory / "repair_job.log"
        dials_file = directory / "repair_job.dials"
        dials.Dials(dials_file)
        named = [argument for queue in queues for argument in ("--queue", queue)]
        return Program(
            [
                sys.executable,
                "-m",
                "tests.children.repair_job",
                *("--contact-points", self.ring.contact_points, "--keyspace", KEYSPACE),
                *("--interval", "1s", "--no-leader", *named),
            ],
            log,
            self.spark_environment(dials_file),
        )

    def _start_driver(self) -> Program:
        dials.Dials(self.driver_dials)
        driver = Program(
            [
                sys.executable,
                "-m",
                "tests.children.pipeline",
                self.ring.contact_points,
                KEYSPACE,
                str(self.directory),
            ],
            self.directory / "driver.log",
            self.spark_environment(self.driver_dials),
        )
        driver.start()
        wait_until(
            lambda: not driver.is_running or b"READY\n" in driver.log.read_bytes(),
            deadline_s=READY_S,
            describe=lambda: f"the driver to start:\n{driver.log.read_text(errors='replace')}",
        )
        if not driver.is_running:
            text = driver.log.read_text(errors="replace")
            raise RuntimeError(f"the Spark driver ended by itself:\n{text[-4_000:]}")
        return driver
