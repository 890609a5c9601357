"""Start Spark's planners by forking a process that has imported everything already (ADR 31, 38).

Spark starts a Python process for each streaming query, and one for each step of planning that asks
a Python source. PySpark's imports and ours take longer than all else that happens there.

Spark ──starts──► cassieq-fork ──asks──► fork server ──forks──► planner ──connects──► Spark
                       │                                           │
                       └── ends when it ends ──────────────────────┘   each sees the other's end

The first of these processes begins the server, when Spark looks for a format. It ends by itself,
with Spark or when it was not asked for a while. Where there is none, they start as ever.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN: Final = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.daemon",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
"""What Spark runs, by release: one that is not there is left out."""

IMPORTED: Final = (
    "pyspark_cassieq",
    "cassieq_spark.spark.data_source",
    "cassieq_spark.spark.sink",
    "cassieq_spark.spark.source.planner",
    "cassieq_spark.spark.source.reader",
    "cassieq_spark.spark.views.reader",
    "cassieq_spark.store.store",
)
"""What our planners import. None of it starts a thread."""

IDLE_S: Final = 600.0
"""A server ends when it was not asked for this long. A query that runs on does not need it."""

HEAD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a child is to be.

    Attributes:
        connection: To the process that asked. It sees the child's end, and the child sees its own.
        words: The module that it runs, and its arguments.
        standard: Its standard input, output and error.
        env: Entries ``NAME=value``: all of the environment.
    """

    connection: socket.socket
    words: list[str]
    standard: list[int]
    folder: bytes
    env: list[bytes]


def main(path: str, spark: int, module: str, lock: int) -> None:
    """Serve at a path until Spark ends.

    Args:
        path: Of a socket, in a folder that belongs to this user alone.
        spark: The process that the server ends with.
        module: What the process runs that has begun the server; its children run it, too.
        lock: The open file of the lock of this path. If serving fails, it says why, and nobody
            tries again for this Spark.
    """
    asked: _Asked | None = None
    code = 1

    def tell_end() -> None:
        if asked is not None:
            with suppress(OSError):
                asked.connection.sendall(bytes([code]))

    # Before all imports, so that a child does it last: it is killed when the other one has ended.
    atexit.register(tell_end)
    try:
        asked = _serve(path, spark, module)
    except Exception as error:  # noqa: BLE001 - it is for whoever looks why
        os.write(lock, f"{type(error).__name__}: {error}\n".encode())
        return
    os.close(lock)
    if asked is None:
        return
    _become(asked)
    try:
        runpy.run_module(asked.words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = 0xFF & (end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    code = 0


def _serve(path: str, spark: int, module: str) -> _Asked | None:
    """Return None when the server ends, and in each child what it was asked.

    Raises:
        Exception: It cannot serve. No child raises anything.
    """
    of_spark = os.pidfd_open(spark)
    for name in RUN:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in (module, *IMPORTED):
        importlib.import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        # A lock that another thread holds would never be free in a child.
        raise RuntimeError("an import has begun a thread")
    gc.collect()
    gc.freeze()
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
        while True:
            ready, _, _ = select.select([server.fileno(), of_spark], [], [], IDLE_S)
            if server.fileno() not in ready:
                break
            connection, _ = server.accept()
            if not os.fork():
                os.close(of_spark)
                try:
                    return _received(connection)
                except OSError:
                    os._exit(1)  # it has gone, and started by itself
            connection.close()
    for one in (path, f"{path}.lock"):
        Path(one).unlink(missing_ok=True)
    return None


def _received(connection: socket.socket) -> _Asked:
    """What the process asks that has connected.

    Raises:
        OSError: It has gone, or started by itself meanwhile.
    """
    head, standard, _, _ = socket.recv_fds(connection, HEAD_BYTES, 3)
    left, parts = int.from_bytes(head, "big"), []
    while left:
        parts.append(connection.recv(left))
        if not parts[-1]:
            break
        left -= len(parts[-1])
    connection.sendall(b"+")
    if left or not connection.recv(1):
        raise ConnectionError("it does not wait any more")
    folder, count, *rest = b"".join(parts).split(b"\0")
    words = [os.fsdecode(word) for word in rest[: int(count)]]
    env = rest[int(count) :]
    return _Asked(connection=connection, words=words, standard=standard, folder=folder, env=env)


def _become(asked: _Asked) -> None:
    """Be as the process that asked would be after its imports."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for to, given in enumerate(asked.standard):
        os.dup2(given, to)
        os.close(given)
    os.chdir(asked.folder)
    for name in list(os.environb):
        del os.environb[name]
    for entry in asked.env:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    if not sys.flags.safe_path:
        sys.path[0] = os.fsdecode(asked.folder)
    sys.argv[1:] = asked.words[1:]
    sys.modules.pop(asked.words[0], None)  # it is run, as the main module
    _end_with(asked.connection)


def _end_with(connection: socket.socket) -> None:
    """End this process, as Spark would have, when the one that asked for it is killed.

    By a signal at the end of the connection, and not by a thread: a daemon forks, and what it forks
    would have a lock that the thread holds. Those processes have nothing to do with the connection.
    """
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([connection], [], [], 0)[0]:  # it has ended before that
        os.kill(os.getpid(), signal.SIGTERM)
    os.register_at_fork(after_in_child=connection.close)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
