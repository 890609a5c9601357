"""What the peers of programs have in common: a server that the benchmark starts, and ends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cassieq_spark.clock import SystemClock
from cassieq_spark.embedded import supervisor
from cassieq_spark.embedded.machine import choose_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ADDRESS = "127.0.0.1"
START_S = 120.0
_STOP_S = 30.0
_POLL_S = 0.1


class PeerMissing(Exception):
    """The peer cannot be had on this machine; the message is one line."""


class Got(NamedTuple):
    """A message that a peer has handed out, and what its ack takes."""

    body: bytes
    handle: Any


def free_port() -> int:
    """A port of this machine that nobody uses, and that no other benchmark or test is given."""
    return choose_ports([ADDRESS]).native


@contextmanager
def folder_of(user: str) -> Iterator[Path]:
    """A temporary folder that belongs to ``user`` if this process is root's; its own otherwise."""
    with tempfile.TemporaryDirectory(prefix="cassieq-bench-") as name:
        Path(name).chmod(0o755)
        inner = Path(name) / user
        inner.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(inner, user, pwd.getpwnam(user).pw_gid)
        yield inner


def as_user(user: str, command: Sequence[str]) -> list[str]:
    """The command, run as ``user`` if this process is root's: servers refuse to be root.

    Raises:
        PeerMissing: There is no such user.
    """
    if os.geteuid() != 0:
        return list(command)
    try:
        group = pwd.getpwnam(user).pw_gid
    except KeyError as error:
        raise PeerMissing(f"this machine has no user {user!r}") from error
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise PeerMissing("setpriv (of util-linux) is not on PATH")
    # A change of user forgets the signal that the supervisor has asked for.
    words = [setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups", "--pdeathsig=KILL"]
    return [*words, *command]


@contextmanager
def running(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    is_up: Callable[[], bool],
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run a server while the block runs; it ends with this process, however that ends.

    Raises:
        PeerMissing: It did not start.
    """
    log = folder.parent / f"{folder.name}-{Path(command[-1]).name[:20]}.log"
    supervised = [sys.executable, "-I", str(Path(supervisor.__file__).resolve())]
    supervised += ["--parent", str(os.getpid()), "--remove", str(folder), "--", *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            supervised,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=folder,
            env={**os.environ, **environment} if environment is not None else None,
            start_new_session=True,
        )
    pid = int(process.stdout.readline() or 0) if process.stdout else 0
    try:
        _await(process, is_up, log)
        yield
    finally:
        if pid and process.poll() is None:
            os.kill(pid, stop)
        try:
            process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            os.kill(pid, signal.SIGKILL)
            process.communicate()


def _await(process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + START_S
    while not is_up():
        if process.poll() is not None or clock.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise PeerMissing(f"the server did not start: {said[-1] if said else 'no word'}")
        clock.wait(_POLL_S)
