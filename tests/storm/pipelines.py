"""The runner's side of the Spark driver: which queries it runs, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.testing import wait_until
from tests.children.pipeline import QUERIES, ROWS_PER_BATCH, SINKS, STOPPED
from tests.storm import calm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storm.history import Recorder
    from tests.storm.stage import Stage

STOP_S: Final = 60.0


class Pipelines:
    """The driver of one seed; an `Actor`. Without Spark it does nothing."""

    def __init__(self, stage: Stage, queue: str, directory: Path, *, priorities: int) -> None:
        self._driver = stage.driver
        self._directory = directory
        self._request = {
            "do": "start",
            "queue": queue,
            "directory": str(directory),
            "priorities": priorities,
        }

    def start(self) -> None:
        """The driver, if it is down, and its queries, from their checkpoints."""
        if self._driver is not None:
            self._driver.start()
            self._driver.tell(self._request)

    def kill(self) -> None:
        """SIGKILL the driver with all that is below it."""
        if self._driver is not None:
            self._driver.kill()

    def pause(self) -> None:
        """SIGSTOP all of it."""
        if self._driver is not None:
            self._driver.pause()

    def resume(self) -> None:
        """SIGCONT all of it."""
        if self._driver is not None:
            self._driver.resume()

    def stop(self) -> None:
        """The queries of this seed, wherever they are; the driver stays, if it can."""
        if self._driver is None:
            return
        if not self._driver.is_running:
            self._driver.start()
            return
        log = self._driver.log
        before = log.read_bytes().count(STOPPED)
        self._driver.tell({"do": "stop"})
        try:
            wait_until(lambda: log.read_bytes().count(STOPPED) > before, deadline_s=STOP_S)
        except AssertionError:  # a query that hangs is found by its lack of progress, not here
            self._driver.kill()
            self._driver.start()

    def committed(self) -> dict[str, int]:
        """How many batches each query has in its commit log."""
        if self._driver is None:
            return {}
        return {name: len(calm.committed_batches(self._directory / name)) for name in QUERIES}

    def wait_for_batches(self, deadline_s: float, beyond: dict[str, int] | None = None) -> None:
        """Return when each query has committed one, or one more than it had.

        Raises:
            ConditionNotMet: A query does not get on.
        """
        before = beyond or {}
        wait_until(
            lambda: all(n > before.get(name, 0) for name, n in self.committed().items()),
            deadline_s=deadline_s,
            describe=lambda: f"a batch of each query: {self.committed()}, before {before}",
        )

    def tell_committed(self, record: Recorder) -> None:
        """What Spark holds for committed, at the end."""
        if self._driver is None:
            return
        for sink in SINKS:
            batches = calm.committed_batches(self._directory / sink)
            record.say("committed", sink=sink, batches=batches, rows=ROWS_PER_BATCH)
