"""Start, stop, kill and pause one node of an embedded cluster, as a fault test needs.

A supervisor runs the node's JVM, and ends it when this process ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from cassieq_spark.embedded import machine, running, supervisor
from cassieq_spark.embedded.config import NodeConfig
from cassieq_spark.embedded.software import Java
from cassieq_spark.errors import EmbeddedFailed

#: Draining flushes every memtable: 3 s idle, 11 s for a ring on two cores, more on a slow disk.
STOP_TIMEOUT_S = 90.0

_KILL_TIMEOUT_S = 30.0
_CQL_POLL_S = 0.05
_GOSSIP_POLL_S = 0.1


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
        lock = running.take_lock(config.directory)
        if lock is None:
            raise EmbeddedFailed(running.directory_in_use(config.directory))
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
            running.record_holder(lock, running.Holder(pid=int(line), port=config.native_port))
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

    def signal(self, number: int) -> None:
        """Send a signal to the JVM; nothing happens when it has ended."""
        # Safe by pid: the JVM is reaped by the supervisor only, and that ends right after.
        if not self.has_ended:
            os.kill(self.pid, number)


def _ends_first(
    process: NodeProcess | subprocess.Popen[bytes],
    condition: Callable[[], bool],
    *,
    what: str,
    limit_s: float,
    poll_s: float,
) -> str | None:
    """Return None when the condition holds; or why the process has not done ``what``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        try:
            return f"ended with exit code {process.wait(poll_s)} before it {what}"
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                return f"has not {what} for {limit_s:g} s"
    return None


def await_cql(
    config: NodeConfig,
    log: running.NodeLog,
    process: NodeProcess | subprocess.Popen[bytes],
    limit_s: float,
) -> None:
    """Return when CQL answers.

    Raises:
        EmbeddedFailed: The JVM ended, or did not answer in time; with the end of its log.
    """
    problem = _ends_first(
        process,
        partial(running.answers, config),
        what="answered CQL",
        limit_s=limit_s,
        poll_s=_CQL_POLL_S,
    )
    if problem is not None:
        raise EmbeddedFailed(
            f"the embedded Cassandra node {config.address}:{config.native_port} {problem}. "
            f"Its files are in {config.directory}. Its last lines:\n{log.tail()}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The software that every node of a cluster is started with."""

    java: Java
    jars: Path
    is_temporary: bool
    start_timeout_s: float


class Node:
    """A JVM on one loopback address. Its verbs block until they have taken effect.

    Attributes:
        address: The loopback address.
        port: The native protocol's port, the same on every node of a cluster.
        contact_point: ``host:port``.
        is_paused: Whether ``pause()`` was the last of its verbs.
    """

    def __init__(
        self,
        config: NodeConfig,
        installation: Installation,
        neighbours: Callable[[], Iterable[Node]],
    ) -> None:
        self.address = config.address
        self.port = config.native_port
        self.contact_point = f"{self.address}:{self.port}"
        self._config = config
        self._installation = installation
        self._neighbours = neighbours
        self._process: NodeProcess | None = None
        self.is_paused = False
        self._log = running.NodeLog(config)

    @property
    def pid(self) -> int | None:
        """The JVM's process id; None while it is down."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the JVM exists, paused or not."""
        return self._process is not None and not self._process.has_ended

    @property
    def answers(self) -> bool:
        """Whether CQL answers within a second."""
        return running.answers(self._config)

    def log_tail(self) -> str:
        """The last lines that the node has logged since its last start."""
        return self._log.tail()

    def sees_up(self, other: Node, *, since: int = 0) -> bool:
        """Whether this node's gossip last called the other one up, after ``since`` in its log."""
        return self._log.peers(since=since).get(other.address, False)

    def start(self) -> None:
        """Boot (5 to 12 s), until CQL answers and every other running node sees it up.

        Raises:
            EmbeddedFailed: It failed, with the end of its log; or it is running already. No process
                is left behind.
        """
        boot([self])

    def stop(self) -> None:
        """Drain and end it, as an operator would; nothing happens when it is down.

        Raises:
            EmbeddedFailed: It had to be killed; with the end of its log.
        """
        stop([self])

    def kill(self) -> None:
        """SIGKILL; nothing happens when it is down. Acknowledged writes are on its disk."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.wait(_KILL_TIMEOUT_S)
            self._process = None

    def restart(self) -> None:
        """Stop it if it runs, then start it on the same data and ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, nothing is answered."""
        if self._process is not None:
            self._process.signal(signal.SIGSTOP)
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT; nothing happens when it is not paused."""
        if self._process is not None and self.is_paused:
            self._process.signal(signal.SIGCONT)
            self.is_paused = False

    def launch(self) -> Mapping[Node, int]:
        """Do the first third of ``start``: start the JVM.

        Returns:
            The nodes that must come to see it up, each with its log's present end.
        """
        if self.is_running:
            raise EmbeddedFailed(f"node {self.contact_point} is already running")
        config = self._config
        if running.is_locked(config.directory):  # before its ports are found taken: this says more
            raise EmbeddedFailed(running.directory_in_use(config.directory))
        machine.check_ports(config.address, (config.native_port, config.storage_port))
        config.write()
        self._log.mark_start()
        witnesses = {
            node: node._log.position()  # noqa: SLF001 - of the same class
            for node in self._neighbours()
            if node.is_running and not node.is_paused
        }
        made = self._installation
        command = [str(made.java.executable), *config.jvm_arguments(made.jars)]
        variables = [f"{name}={value}" for name, value in config.environment.items()]
        self._process = NodeProcess.launch(
            config,
            # For the JVM alone: not for what supervises it.
            ["env", *variables, *command] if variables else command,
            remove=config.directory if made.is_temporary else None,
        )
        self.is_paused = False
        return witnesses

    def await_cql(self) -> None:
        """Do the second third of ``start``: return when CQL answers."""
        if self._process is not None:
            limit_s = self._installation.start_timeout_s
            await_cql(self._config, self._log, self._process, limit_s)

    def await_witnesses(self, witnesses: Mapping[Node, int]) -> None:
        """Do the last third of ``start``: this node and each witness see each other up."""

        def blind() -> list[str]:
            return [
                node.contact_point
                for node, position in witnesses.items()
                if not (node.sees_up(self, since=position) and self.sees_up(node))
            ]

        limit_s = self._installation.start_timeout_s
        if self._process is not None and _ends_first(
            self._process,
            lambda: not blind(),
            what="seen all",
            limit_s=limit_s,
            poll_s=_GOSSIP_POLL_S,
        ):
            raise EmbeddedFailed(
                f"node {self.contact_point} booted, but it and {', '.join(blind())} do not see "
                f"each other as up. Its last lines:\n{self.log_tail()}"
            )

    def request_stop(self) -> None:
        """Do the first half of ``stop``."""
        if self._process is not None:
            self.resume()
            self._process.signal(signal.SIGTERM)

    def await_stop(self) -> str | None:
        """Do the second half of ``stop``; return what went wrong, if anything. The JVM is gone."""
        if self._process is None:
            return None
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            tail = self.log_tail()
            self.kill()
            return (
                f"node {self.contact_point} did not stop within {STOP_TIMEOUT_S:g} s and was "
                f"killed. Its last lines:\n{tail}"
            )
        self._process = None
        return None


def boot(nodes: Iterable[Node]) -> None:
    """Boot nodes side by side, until all answer CQL and all running nodes see each other up.

    Raises:
        EmbeddedFailed: One failed; then all of ``nodes`` are killed.
    """
    launched: dict[Node, Mapping[Node, int]] = {}
    try:
        for node in nodes:
            launched[node] = node.launch()
        for node in launched:
            node.await_cql()
        for node, witnesses in launched.items():
            booted_with_it = {other: 0 for other in launched if other is not node}
            node.await_witnesses({**witnesses, **booted_with_it})
    except BaseException:
        for node in launched:
            node.kill()
        raise


def stop(nodes: Iterable[Node]) -> None:
    """Stop nodes side by side; all are down afterwards.

    Raises:
        EmbeddedFailed: Some had to be killed.
    """
    stopping = list(nodes)
    for node in stopping:
        node.request_stop()
    problems = [problem for node in stopping if (problem := node.await_stop()) is not None]
    if problems:
        raise EmbeddedFailed("\n".join(problems))
