"""Start Spark's planners by forking a process that has imported everything already (ADR 31).

Spark starts a Python process for each streaming query. PySpark's imports and ours take longer than
all else that happens there before the first batch.

Spark ──starts──► cassieq-fork ──asks──► fork server ──forks──► planner ──connects──► Spark
                       │                                           │
                       └── ends when it ends ──────────────────────┘   each sees the other's end

The first query begins the server. It ends by itself: with Spark, or when no query has started for
a while. Where there is none, a planner starts as Spark starts it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cassieq_spark.clock import SystemClock

IMPORTED: Final = (
    "pyspark_cassieq",
    "cassieq_spark.spark.source.planner",
    "cassieq_spark.spark.source.reader",
)
"""Beside what Spark runs: what our planner imports. None of it starts a thread."""

DELAY_S: Final = 1.0
"""The server imports this long after it was begun: the first query starts meanwhile."""

IDLE_S: Final = 600.0
"""A server ends when it was not asked for this long. A query that runs on does not need it."""

LOOK_S: Final = 2.0
"""How often a server looks whether Spark still lives."""

HEAD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a child is to be.

    Attributes:
        connection: To the process that asked. It sees the child's end, and the child sees its own.
        standard: Its standard input, output and error.
        env: Entries ``NAME=value``: all of the environment.
    """

    connection: socket.socket
    standard: list[int]
    folder: bytes
    env: list[bytes]


def main(path: str, spark: int, module: str) -> None:
    """Serve at a path; return at once if another server does.

    Args:
        path: Of a socket, in a folder that belongs to this user alone.
        spark: The process that the server ends with.
        module: What its children run.
    """
    with Path(f"{path}.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        asked = _serve(path, spark, module)
    if asked is not None:
        _become(asked, module)


def _serve(path: str, spark: int, module: str) -> _Asked | None:
    """Return None when the server ends, and in each child what it was asked."""
    clock = SystemClock()
    clock.wait(DELAY_S)
    for name in (module, *IMPORTED):
        importlib.import_module(name)
    del sys.modules[module]  # each child runs it, as the main module
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(LOOK_S)
        asked_s = clock.monotonic()
        while _lives(spark) and clock.monotonic() - asked_s < IDLE_S:
            with suppress(TimeoutError):
                connection, _ = server.accept()
                asked_s = clock.monotonic()
                if not os.fork():
                    return _received(connection)
                connection.close()
    for one in (path, f"{path}.lock"):
        Path(one).unlink(missing_ok=True)
    return None


def _received(connection: socket.socket) -> _Asked:
    connection.settimeout(None)
    head, standard, _, _ = socket.recv_fds(connection, HEAD_BYTES, 3)
    left, parts = int.from_bytes(head, "big"), []
    while left:
        parts.append(connection.recv(left))
        if not parts[-1]:
            sys.exit(1)  # it has gone
        left -= len(parts[-1])
    folder, *env = b"".join(parts).split(b"\0")
    return _Asked(connection=connection, standard=standard, folder=folder, env=env)


def _become(asked: _Asked, module: str) -> NoReturn:
    """Run the module as the process would that asked."""
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
    if not _is_awaited(asked.connection):
        sys.exit(1)
    threading.Thread(target=_end_with, args=(asked.connection,), daemon=True).start()
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        with suppress(OSError):
            asked.connection.sendall(bytes([code & 0xFF]))
    sys.exit(code)


def _is_awaited(connection: socket.socket) -> bool:
    """Whether the process that asked has not started by itself meanwhile."""
    try:
        connection.sendall(b"+")
        return bool(connection.recv(1))
    except OSError:
        return False


def _end_with(connection: socket.socket) -> None:
    """End this process, as Spark would have, when the one that asked for it is killed."""
    with suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
