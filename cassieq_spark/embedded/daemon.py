"""Run one node that outlives its starter, for ``cassieq cassandra start | stop | status``."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import platformdirs

from cassieq_spark.embedded import machine, running
from cassieq_spark.embedded.config import DATACENTER, NEEDED_BYTES, NodeConfig
from cassieq_spark.embedded.node import STOP_TIMEOUT_S, await_cql
from cassieq_spark.embedded.software import CASSANDRA, CASSANDRA_VERSION, find_java, jars_of
from cassieq_spark.errors import EmbeddedFailed

_ADDRESS = "127.0.0.1"


class DaemonState(StrEnum):
    """The state of the node as a look from outside shows it."""

    UP = "up"
    NOT_ANSWERING = "not answering"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """The node on one data directory; without pid and contact points when it is down."""

    state: DaemonState
    data_dir: Path
    datacenter: str = DATACENTER
    contact_points: str | None = None
    pid: int | None = None


def default_data_dir() -> Path:
    """A place in the user's data directory, where files are meant to stay.

    Raises:
        EmbeddedFailed: The user has no home directory.
    """
    root = machine.of_user(platformdirs.user_data_path, otherwise="name a data directory")
    return root / "cassandra"


def status(data_dir: Path) -> DaemonStatus:
    """Look whether the node runs, and whether it answers CQL within a second."""
    holder = running.holder_of(_directory(data_dir))
    if holder is None:
        return DaemonStatus(state=DaemonState.DOWN, data_dir=data_dir)
    is_up = running.answers_cql(_ADDRESS, holder.port)
    return DaemonStatus(
        state=DaemonState.UP if is_up else DaemonState.NOT_ANSWERING,
        data_dir=data_dir,
        contact_points=f"{_ADDRESS}:{holder.port}",
        pid=holder.pid,
    )


def start(
    data_dir: Path,
    *,
    port: int,
    heap: str,
    start_timeout_s: float = 180.0,
    on_step: Callable[[str], None] = lambda _: None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> DaemonStatus:
    """Start the node, or find it running; it answers CQL when this returns.

    Args:
        on_step: Called with what is done next, when that takes long.
        on_bytes: See `jars_of`.

    Raises:
        JavaNotFound: No Java 17 was found.
        DiskFull: The disk has less free space than a node needs.
        EmbeddedFailed: It did not start, with the end of its log; or it runs on another port; or
            the directory cannot be written.
    """
    directory = _directory(data_dir)
    with machine.writes(data_dir):
        directory.mkdir(parents=True, exist_ok=True)
    if not running.is_locked(directory):  # a node that runs has its space
        # A node that has run there finds its commit log, which it writes over.
        need = NEEDED_BYTES - machine.size_of(directory / "commitlog")
        machine.check_space(data_dir, need, what="a Cassandra node")
    java = find_java()
    jars = jars_of(CASSANDRA, java, on_fetch=on_step, on_bytes=on_bytes)
    on_step(f"Starting Cassandra {CASSANDRA_VERSION} on {data_dir}")
    with machine.writes(data_dir):
        lock = running.take_lock(directory)
        if lock is None:
            return _join_running(data_dir, port, start_timeout_s)
        try:
            ports = machine.choose_ports((_ADDRESS,), native=port, kept_in=data_dir)
            config = NodeConfig(
                directory=directory,
                index=0,
                addresses=(_ADDRESS,),
                native_port=ports.native,
                storage_port=ports.storage,
                heap=heap,
            )
            machine.check_ports(_ADDRESS, (ports.native, ports.storage))
            config.write()
            log = running.NodeLog(config)
            log.mark_start()
            process = _launch(config, [str(java.executable), *config.jvm_arguments(jars)], lock)
            running.record_holder(lock, running.Holder(pid=process.pid, port=port))
        finally:
            os.close(lock)
        try:
            await_cql(config, log, process, start_timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
    process.returncode = 0  # it is meant to outlive us: no ResourceWarning about that
    return status(data_dir)


def stop(data_dir: Path) -> bool:
    """Drain and end the node; False when it was down already.

    Raises:
        EmbeddedFailed: It had to be killed.
    """
    holder = running.holder_of(_directory(data_dir))
    if holder is None:
        return False
    # Safe by pid: the lock is held, and only the JVM that is recorded in it can hold it.
    os.kill(holder.pid, signal.SIGTERM)
    os.kill(holder.pid, signal.SIGCONT)
    is_freed = running.becomes_true(
        lambda: not running.is_locked(_directory(data_dir)), limit_s=STOP_TIMEOUT_S
    )
    if not is_freed:
        os.kill(holder.pid, signal.SIGKILL)
        raise EmbeddedFailed(
            f"the node on {data_dir} did not stop within {STOP_TIMEOUT_S:g} s and was killed. "
            "Nothing that it acknowledged is lost"
        )
    return True


def _launch(config: NodeConfig, command: list[str], lock: int) -> subprocess.Popen[bytes]:
    with config.console_log.open("wb") as console:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd=config.directory,
            pass_fds=(lock,),
            start_new_session=True,
        )


def _join_running(data_dir: Path, port: int, limit_s: float) -> DaemonStatus:
    """Wait for the running node; it may be booting just now, for another call."""
    running.becomes_true(
        lambda: status(data_dir).state is not DaemonState.NOT_ANSWERING, limit_s=limit_s
    )
    found = status(data_dir)
    if found.state is DaemonState.DOWN:
        raise EmbeddedFailed(
            f"the node on {data_dir} ended while this call waited for it. Try again; its log is in "
            f"{_directory(data_dir) / 'log'}"
        )
    if found.state is not DaemonState.UP:
        raise EmbeddedFailed(
            f"the node on {data_dir} runs (pid {found.pid}) but has not answered CQL for "
            f"{limit_s:g} s. Its log is in {_directory(data_dir) / 'log'}"
        )
    if found.contact_points != f"{_ADDRESS}:{port}":
        raise EmbeddedFailed(
            f"the node on {data_dir} runs on {found.contact_points}, but port {port} was asked "
            "for. Stop the node first, or name another data directory"
        )
    return found


def _directory(data_dir: Path) -> Path:
    return data_dir / "node1"
