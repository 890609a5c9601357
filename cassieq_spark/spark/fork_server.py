"""Start Spark's planners by forking a process that has imported everything already (ADR 31, 38).

Spark starts a Python process for each streaming query, and one for each step of planning that asks
a Python source. PySpark's imports and ours take longer than all else that happens there.

Spark ──starts──► cassieq-fork ──asks──► fork server ──forks──► planner ──connects──► Spark
                       │                                           │
                       └── ends when it ends ──────────────────────┘   each sees the other's end

The first of these processes begins the server, when Spark looks for a format. It ends with Spark.
Where there is none, they start as ever.
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

LOOK_S: Final = 10.0
"""How often a server looks whether its socket is still where it was: nobody can ask it else."""

PAUSE_S: Final = 0.1
"""Until a server tries again, where the system has no file to give."""

HEAD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a child is to be.

    Attributes:
        words: The module that it runs, and its arguments.
        standard: Its standard input, output and error.
        env: Entries ``NAME=value``: all of the environment.
    """

    words: list[str]
    standard: list[int]
    folder: bytes
    env: list[bytes]


def main(path: str, spark: int, lock: int) -> None:
    """Serve at a path until Spark ends.

    Args:
        path: Of a socket, in a folder that belongs to this user alone.
        spark: The process that the server ends with.
        lock: The open file of the lock of this path. If serving fails, it says why, and nobody
            tries again for this Spark.
    """
    child: _Child | None = None
    code = 1

    def tell_end() -> None:
        if child is not None:
            child.tell_end(code)

    # Before all imports, so that a child does it last: Spark waits for its other exit functions.
    atexit.register(tell_end)
    try:
        child = _serve(path, spark, lock)
    except Exception as error:  # noqa: BLE001 - it is for whoever looks why
        os.write(lock, f"{type(error).__name__}: {error}\n".encode())
        return
    os.close(lock)
    if child is None:
        return
    try:
        runpy.run_module(child.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = 0xFF & (end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    code = 0


def _serve(path: str, spark: int, lock: int) -> _Child | None:
    """Return None when the server ends, and in each child what it is.

    Raises:
        Exception: It cannot serve. No child raises anything.
    """
    of_spark = os.pidfd_open(spark)
    for name in RUN:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in IMPORTED:
        importlib.import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        # A lock that another thread holds would never be free in a child.
        raise RuntimeError("an import has begun a thread")
    importlib.invalidate_caches()  # some hold open files, whose place children would share
    gc.collect()
    gc.freeze()
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        files = [
            _File(Path(path), Path(path).stat().st_ino),
            _File(Path(f"{path}.lock"), os.fstat(lock).st_ino),
        ]
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
        while True:
            ready, _, _ = select.select([server.fileno(), of_spark], [], [], LOOK_S)
            if of_spark in ready or not files[0].is_there():
                break
            connection = _forked(server) if ready else None
            if connection is not None:
                os.close(of_spark)
                return _Child.of(connection)
    for file in files:
        if file.is_there():
            file.path.unlink(missing_ok=True)
    return None


def _forked(server: socket.socket) -> socket.socket | None:
    """Fork a child for whoever asks: it gets the connection, and the server None.

    Where the system has no file or process to give, whoever asked starts by itself.
    """
    try:
        connection, _ = server.accept()
    except OSError:
        select.select([], [], [], PAUSE_S)
        return None
    with suppress(OSError):
        if not os.fork():
            return connection
    connection.close()
    return None


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a server. Another server may have made one in its place since."""

    path: Path
    inode: int

    def is_there(self) -> bool:
        """Whether it is still this file; what cleans folders may have removed it."""
        with suppress(OSError):
            return self.path.stat().st_ino == self.inode
        return False


class _Child:
    """A forked process, as the one that asked would be after its imports.

    Attributes:
        module: What it is to run, as the main module.
    """

    def __init__(self, connection: socket.socket, module: str) -> None:
        self._connection = connection
        self.module = module

    @classmethod
    def of(cls, connection: socket.socket) -> _Child:
        """Be what is asked for; end if that fails, or nobody waits for it any more.

        Whoever asks starts by itself then, and it does if this process ends before it has agreed.
        """
        try:
            asked = _received(connection)
            _become(asked)
            child = cls(connection, asked.words[0])
            child._prepare()
            connection.sendall(b"+")
            if not connection.recv(1):
                os._exit(1)
            child._end_with_it()
        except BaseException:  # noqa: BLE001 - the server's own code must not go on here
            os._exit(1)
        return child

    def tell_end(self, code: int) -> None:
        """Say how this process ends. What Python does after that is not cut short by a signal."""
        with suppress(OSError, ValueError):  # a fork of it has closed the connection
            self._hear(is_on=False)
            self._connection.sendall(bytes([code]))

    def _prepare(self) -> None:
        """Let the connection's end be a signal, and no other process have to do with it.

        A thread that waits for it would hold a lock that is never free in what a daemon forks.
        """
        fcntl.fcntl(self._connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._connection, fcntl.F_SETSIG, signal.SIGTERM)
        os.register_at_fork(after_in_child=self._connection.close)

    def _end_with_it(self) -> None:
        """End this process from now on, as Spark would, when the one that asked is killed."""
        self._hear(is_on=True)
        if select.select([self._connection], [], [], 0)[0]:  # it has ended before that
            os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, *, is_on: bool) -> None:
        flags = fcntl.fcntl(self._connection, fcntl.F_GETFL)
        flags = flags | os.O_ASYNC if is_on else flags & ~os.O_ASYNC
        fcntl.fcntl(self._connection, fcntl.F_SETFL, flags)


def _received(connection: socket.socket) -> _Asked:
    """What the process asks that has connected.

    Raises:
        OSError: It has gone.
    """
    head, standard, _, _ = socket.recv_fds(connection, HEAD_BYTES, 3)
    left, parts = int.from_bytes(head, "big"), []
    while left:
        parts.append(connection.recv(left))
        if not parts[-1]:
            raise ConnectionError("it does not wait any more")
        left -= len(parts[-1])
    folder, count, *rest = b"".join(parts).split(b"\0")
    words = [os.fsdecode(word) for word in rest[: int(count)]]
    return _Asked(words=words, standard=standard, folder=folder, env=rest[int(count) :])


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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
