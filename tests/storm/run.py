"""One seed: the storm, the calm after it, the verdict."""

# ruff: noqa: T201 - a line for each seed is what it is run for

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.testing import ConditionNotMet, wait_until
from tests.storm import calm, checker, history
from tests.storm.dials import Dials
from tests.storm.faults import Faults
from tests.storm.pipelines import Pipelines
from tests.storm.processes import Forked
from tests.storm.schedule import DRIVER, REPAIR, REPAIR_JOB, draw
from tests.storm.stage import KEYSPACE, cast_of, lanes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.storm.checker import Anomaly
    from tests.storm.processes import Actor
    from tests.storm.schedule import Schedule
    from tests.storm.stage import Stage

SHOWN: Final = 10
"""So many broken promises of a seed are printed; all of them are beside its history."""

PROGRESS_S: Final = 150.0
"""All get on again by then, on a machine that is doing much else."""

FAR: Final = 0.1
"""The share of puts that wait in due lanes."""

QUEUE_SETTINGS: Final[dict[str, Any]] = {
    "bucket_size": history.BUCKET_SIZE,
    "visibility_timeout": 3,
    "repair_timeout": 2,
    "gap_timeout": 2,
    "dedup_window": 600,
    "schedule_after": 60,
    "schedule_period": 60,
}
"""Short times, so that they end."""


@dataclass(slots=True)
class Report:
    """What a seed gave."""

    schedule: Schedule
    counts: Counter[str]
    seconds: float
    faults: int
    phases: dict[str, float] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    kept: Path | None = None

    @property
    def is_green(self) -> bool:
        """Nothing was broken."""
        return not self.anomalies

    def __str__(self) -> str:
        """One line; with the directory of its history where something was broken."""
        counts = ", ".join(f"{number} {name}" for name, number in sorted(self.counts.items()))
        verdict = " ".join(f"{kind}={n}" for kind, n in checker.told(self.anomalies).items())
        phases = " ".join(f"{name} {seconds:.0f}" for name, seconds in self.phases.items())
        line = (
            f"seed {self.schedule.seed}: {self.faults} faults, {counts}: {verdict} "
            f"({self.seconds:.0f} s: {phases})"
        )
        return line if self.kept is None else f"{line}\n  history kept in {self.kept}"


class Storm:
    """One seed on a stage."""

    def __init__(self, stage: Stage, seed: int, seconds: float) -> None:
        self._stage = stage
        self._cast = cast_of(seed, has_spark=stage.has_spark)
        self._lanes = lanes_of(seed)
        self._schedule = draw(seed, seconds, self._cast)
        self._directory = stage.directory / f"seed-{seed}"
        if self._directory.exists():
            shutil.rmtree(self._directory)
        self._directory.mkdir(parents=True)
        name = f"storm.{seed}.{int(SystemClock().monotonic() * 1e3)}"
        self._dead = f"{name}.dead"
        self._main = name
        self._queues = [name, self._dead]
        self._phases: dict[str, float] = {}
        self._phase_s = SystemClock().monotonic()

    def _end_phase(self, name: str) -> None:
        now = SystemClock().monotonic()
        self._phases[name] = now - self._phase_s
        self._phase_s = now

    def run(self) -> Report:
        """All of it; its directory goes if nothing was broken."""
        began_s = SystemClock().monotonic()
        client = self._stage.client
        settings = {**QUEUE_SETTINGS, **self._lanes}
        client.create_queue(self._dead, **settings)
        client.create_queue(self._main, dead_letter_queue=self._dead, max_deliveries=6, **settings)
        children = self._children()
        pipelines = Pipelines(
            self._stage, self._main, self._directory, priorities=self._lanes["priorities"]
        )
        actors: dict[str, Actor] = {**children}
        if self._cast.has_spark:
            actors[DRIVER] = pipelines
        if self._cast.has_repair_job:
            actors[REPAIR_JOB] = self._stage.repair_job(self._directory, self._queues)
        faults = Faults(self._stage.ring, actors, self._dials(), self._stage.driver)
        anomalies: list[Anomaly] = []
        try:
            pipelines.start()  # alone at first: a query's start is much work
            pipelines.wait_for_batches(PROGRESS_S)
            for actor in actors.values():
                actor.start()
            self._wait_for_children()
            self._end_phase("start")
            faults.run(self._schedule)
            pipelines.start()  # as a cluster manager does, if the driver has ended by itself
            self._end_phase("storm")
            self._wait_for_children()
            self._stop(actors, but=DRIVER)  # Spark gives a new Python process ten seconds
            pipelines.wait_for_batches(PROGRESS_S, beyond=pipelines.committed())
            self._end_phase("progress")
        except ConditionNotMet as error:
            anomalies.append(checker.Anomaly(kind="stuck", what=str(error)))
        finally:
            pipelines.stop()
            self._stop(actors, but=DRIVER)
            (self._directory / "faults.txt").write_text("\n".join(faults.done) + "\n")
        anomalies += [
            checker.Anomaly(kind="stuck", what=crash)
            for child in children.values()
            for crash in child.crashes
        ]
        return self._judged(anomalies, pipelines, len(faults.done), began_s)

    def _judged(
        self, anomalies: list[Anomaly], pipelines: Pipelines, faults: int, began_s: float
    ) -> Report:
        self._end_phase("stop")
        client = self._stage.client
        record = history.Recorder(self._directory, "runner")
        anomalies += calm.drain(client, self._queues, record, longest_s=calm.FAR_OVER_S)
        anomalies += calm.highest_first(client.queue(self._main), record)
        anomalies += calm.drain_scheduled(client, self._queues, record)
        self._end_phase("drain")
        anomalies += calm.look_through(client, self._queues)
        pipelines.tell_committed(record)
        record.close()
        entries = history.read(self._directory)
        anomalies += checker.check(entries, dead_letters=self._dead)
        self._end_phase("check")
        report = Report(
            schedule=self._schedule,
            counts=checker.count(entries),
            seconds=SystemClock().monotonic() - began_s,
            faults=faults,
            phases=self._phases,
            anomalies=anomalies,
        )
        if report.is_green:
            client.delete_queue(self._main)
            client.delete_queue(self._dead)
        if report.is_green and not self._stage.keeps_all:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            report.kept = self._directory
            lines = "\n".join(json.dumps(one) for one in checker.as_lines(anomalies))
            (self._directory / "anomalies.json").write_text(f"{lines}\n")
            (self._directory / "schedule.txt").write_text(f"{self._schedule}\n")
        return report

    def _children(self) -> dict[str, Forked]:
        found: dict[str, Forked] = {}
        for number, name in enumerate(self._cast.children):
            module = "repairer" if name == REPAIR else name.rstrip("0123456789")
            queues = [self._main] if module == "producer" else self._queues
            arguments: dict[str, Any] = {
                "who": name,
                "contact_points": self._stage.ring.contact_points,
                "keyspace": KEYSPACE,
                "directory": str(self._directory),
                "dials_file": str(self._directory / f"{name}.dials"),
                "loses": name in self._cast.losing,
                "seed": self._schedule.seed * 1_000 + number,
                "queues": queues,
            }
            if module == "producer":
                arguments["pace"] = {"far": FAR}
            found[name] = Forked(self._stage.zygote, name, f"tests.children.{module}", arguments)
        return found

    def _dials(self) -> dict[str, Dials]:
        found = {name: Dials(self._directory / f"{name}.dials") for name in self._cast.children}
        if self._cast.has_spark:
            found[DRIVER] = Dials(self._stage.driver_dials)
        if self._cast.has_repair_job:
            found[REPAIR_JOB] = Dials(self._directory / "repair_job.dials")
        return found

    @staticmethod
    def _stop(actors: dict[str, Actor], *, but: str) -> None:
        for name, actor in actors.items():
            if name != but:
                actor.kill()

    def _wait_for_children(self) -> None:
        """Nobody is hurt: each producer is told of a put, and somebody gets something.

        Raises:
            ConditionNotMet: Somebody does not get on.
        """
        since_s = SystemClock().monotonic()

        def waiting() -> list[str]:
            told = {
                entry["who"]
                for entry in history.read(self._directory)
                if entry["at"] > since_s and entry["what"] in ("put", "got")
                if entry.get("stored") or entry.get("named")
            }
            names = [name for name in self._cast.children if name != REPAIR]
            behind = [name for name in names if name.startswith("producer") and name not in told]
            if not any(name.startswith("consumer") for name in told):
                behind.append("consumers")
            return behind

        wait_until(
            lambda: not waiting(),
            deadline_s=PROGRESS_S,
            describe=lambda: f"all to get on; still behind: {waiting()}",
        )


def storms(stage: Stage, seeds: Iterable[int], seconds: float) -> list[Report]:
    """One after the other, each on a ring that is whole; a line for each is printed at once."""
    reports = []
    for seed in seeds:
        stage.ring.resume()
        stage.ring.start()
        report = Storm(stage, seed, seconds).run()
        print(report, flush=True)
        for anomaly in report.anomalies[:SHOWN]:
            print(f"    {anomaly.kind}: {anomaly.what[:1_000]}", flush=True)
        reports.append(report)
    return reports
