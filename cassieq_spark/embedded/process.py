"""Run a node's JVM under a supervisor that ends it when this process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from cassieq_spark.embedded import supervisor
from cassieq_spark.embedded.lock import Holder, directory_in_use, record_holder, take_lock
from cassieq_spark.errors import EmbeddedFailed

if TYPE_CHECKING:
    import signal

    from cassieq_spark.embedded.config import NodeConfig
    from cassieq_spark.embedded.probe import NodeLog

_POLL_S = 0.05


class Waitable(Protocol):
    """A process that may end while it is waited for."""

    def wait(self, timeout: float) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """


class NodeProcess:
    """A running JVM and its supervisor."""

    def __init__(self, supervised: subprocess.Popen[bytes], pid: int) -> None:
        self._supervisor = supervised
        self.pid = pid

    @classmethod
    def launch(cls, config: NodeConfig, command: list[str], *, remove: Path | None) -> Self:
        """Start the JVM, in a session of its own: Ctrl-C is for the caller, who then stops it.

        Args:
            command: ``java`` and its arguments.
            remove: A directory that the supervisor deletes when this process has died.

        Raises:
            EmbeddedFailed: Another JVM uses the directory, or the supervisor did not start.
        """
        supervised = [sys.executable, "-I", str(Path(supervisor.__file__).resolve())]
        supervised += ["--parent", str(os.getpid())]
        supervised += ["--remove", str(remove)] if remove else []
        supervised += ["--", *command]
        lock = take_lock(config.directory)
        if lock is None:
            raise EmbeddedFailed(directory_in_use(config.directory))
        try:
            with config.console_log.open("wb") as console:
                process = subprocess.Popen(
                    supervised,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=console,
                    cwd=config.directory,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            line = process.stdout.readline() if process.stdout is not None else b""
            if not line:
                process.communicate()
                words = config.console_log.read_text(encoding="utf-8", errors="replace")
                raise EmbeddedFailed(f"a node's supervisor ended at once. It said:\n{words}")
            record_holder(lock, Holder(pid=int(line), port=config.native_port))
        finally:
            os.close(lock)
        return cls(process, int(line))

    @property
    def has_ended(self) -> bool:
        """Whether the JVM is gone."""
        return self._supervisor.poll() is not None

    def wait(self, timeout: float) -> int:
        """The JVM's exit code, 128 + n after signal n.

        Raises:
            subprocess.TimeoutExpired: It still runs after ``timeout`` seconds.
        """
        code = self._supervisor.wait(timeout)
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the JVM; nothing happens when it has ended."""
        # Safe by pid: the JVM is reaped by the supervisor only, and that ends right after.
        if not self.has_ended:
            os.kill(self.pid, number)


def await_cql(config: NodeConfig, log: NodeLog, process: Waitable, limit_s: float) -> None:
    """Return when CQL answers.

    Raises:
        EmbeddedFailed: The JVM ended, or did not answer in time; with the end of its log.
    """
    deadline = time.monotonic() + limit_s
    while not config.answers():
        try:
            problem = f"ended with exit code {process.wait(_POLL_S)} before it answered CQL"
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
            problem = f"did not answer CQL within {limit_s:g} s"
        raise EmbeddedFailed(
            f"the embedded Cassandra node {config.address}:{config.native_port} {problem}. Its "
            f"files are in {config.directory}. Its last lines:\n{log.tail()}"
        )
