"""Lock a directory exactly while a JVM uses it, and say which JVM that is.

The JVM inherits the locked descriptor, so the kernel releases the lock when the JVM ends, however
that happens. Unlike a pid file it cannot be stale, and no reused pid is ever taken for a node's.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cassieq_spark.embedded.probe import becomes_true
from cassieq_spark.errors import EmbeddedFailed

_LOCK_FILE = "node.lock"

#: From taking the lock to recording the JVM: a fork and exec, on whatever loaded machine.
_RECORD_TIMEOUT_S = 10.0

#: A look at the lock takes it for an instant, so a refusal counts only when it lasts.
_TAKE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The JVM that uses a directory."""

    pid: int
    port: int


def take_lock(directory: Path) -> int | None:
    """Return the locked descriptor, which the JVM inherits and we close; None while one runs."""
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    if not becomes_true(lambda: _try_lock(descriptor), limit_s=_TAKE_TIMEOUT_S):
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    return descriptor


def record_holder(descriptor: int, holder: Holder) -> None:
    """Record which JVM has inherited the lock; it counts for as long as the lock is held."""
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def holder_of(directory: Path) -> Holder | None:
    """The JVM that uses the directory now; None when there is none.

    Raises:
        EmbeddedFailed: Somebody has held the lock for a while without recording a JVM.
    """
    found: list[Holder] = []

    def is_settled() -> bool:
        if not is_locked(directory):
            return True
        text = (directory / _LOCK_FILE).read_text(encoding="utf-8")
        if text.endswith("}"):
            found.append(Holder(**json.loads(text)))
        return bool(found)

    if not becomes_true(is_settled, limit_s=_RECORD_TIMEOUT_S):
        raise EmbeddedFailed(
            f"{directory / _LOCK_FILE} is held by a process that has not started a node. End that "
            "process"
        )
    return found[0] if found else None


def is_locked(directory: Path) -> bool:
    """Whether a JVM uses this directory, or is being started on it."""
    try:
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def directory_in_use(directory: Path) -> str:
    """The message to a user who starts a node on a locked directory."""
    return (
        f"a node is already running on {directory}. Stop that one first, or name another data "
        "directory"
    )


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
