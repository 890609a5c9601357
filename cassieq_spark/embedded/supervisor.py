"""Keeps one JVM alive exactly as long as the process that wanted it; run as a script.

    python supervisor.py --parent PID [--remove DIR] -- COMMAND ...

It prints the JVM's pid, then ends with the JVM's exit code. Standard input is a pipe that nobody
writes to: it ends when the parent ends, however that happens, and then the JVM is killed. Three
holes are closed besides: a process forked from the parent may hold the pipe open (so the parent's
pid is watched too); this process may be killed itself (so Linux is asked to kill the JVM then);
Ctrl-C at a terminal reaches the whole process group (so the caller starts this one in a new
session). Only the standard library is used: it starts in 50 ms and cannot meet a broken package.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the command; return its exit code, negative for a signal as in ``subprocess``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--remove", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:]  # after "--"

    # Looked up here, not in the child: between fork and exec as little as possible may happen.
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    jvm = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        close_fds=False,  # the inherited lock on the data directory must stay held
        preexec_fn=None if prctl is None else partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - no thread is running yet
    )
    os.write(1, f"{jvm.pid}\n".encode())
    orphaned = threading.Event()
    watcher = threading.Thread(
        target=_kill_when_orphaned, args=(jvm, arguments.parent, orphaned), daemon=True
    )
    watcher.start()
    code = jvm.wait()
    if orphaned.is_set() and arguments.remove:
        shutil.rmtree(arguments.remove, ignore_errors=True)
        with contextlib.suppress(OSError):  # other nodes of the ring are still in it
            arguments.remove.parent.rmdir()
    return code


def _kill_when_orphaned(
    jvm: subprocess.Popen[bytes], parent: int, orphaned: threading.Event
) -> None:
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _PARENT_POLL_S)
        if readable:  # end of file: the parent is gone, or dropped its end of the pipe
            break
    orphaned.set()
    jvm.kill()


if __name__ == "__main__":
    code = main()
    sys.exit(128 - code if code < 0 else code)
