"""`Process` is one process that calls the function, as its parent sees it.

It is built on a socket and a child process of the standard library. Pools that exist share locks
or a queue among their processes: with Pebble 5.2 an idle process that is killed breaks the pool,
with loky 3.7 and concurrent.futures one death fails what all others are working on. Here a death
says something about one message, and nothing about the others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection, wait
from typing import Final

from cassieq_spark.clock import Clock
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.child import Answer

MODULE: Final = "cassieq_spark.worker"
"""The module that the child runs; with ``-m`` it finds modules of the current directory."""

LOOK_S: Final = 1.0
"""A death is noticed within this time even if something that the function has started keeps the
connection open; else it is noticed at once."""

END_S: Final = 5.0
"""An idle process that does not end by itself within this time is killed."""


class Process:
    """A child process; used by one thread."""

    def __init__(self, function: str, clock: Clock) -> None:
        self._clock = clock
        ours, theirs = socket.socketpair()
        with theirs:
            # In a process group of its own: Ctrl-C in a terminal is for the parent to handle, and
            # what the function has started ends with it.
            self._child = subprocess.Popen(
                [sys.executable, "-m", MODULE, function, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self._connection = Connection(ours.detach())

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def send(self, message: Delivery) -> bool:
        """Give it a message. False: it had ended, and the function has not seen the message."""
        if not self.is_alive:
            return False
        # Otherwise it died while it took the message, and `answer` says so.
        with suppress(OSError):
            self._connection.send(message)
        return True

    def answer(self, wake: Callable[[], float]) -> Answer | None:
        """Wait until it has found the function, or for what became of the message.

        A process that has closed the connection and goes on is killed.

        Args:
            wake: Called from time to time; does what is due, and returns the monotonic moment
                when it wants to be called again. Minus infinity: wait no longer.

        Returns:
            None if ``wake`` said so.
        """
        while (until_s := wake()) != -inf:
            left_s = max(0.0, until_s - self._clock.monotonic())
            has_ended = not self.is_alive  # before the look: it may have answered
            if wait([self._connection], 0 if has_ended else min(left_s, LOOK_S)):
                try:
                    return self._connection.recv()  # type: ignore[no-any-return]  # by protocol
                except (EOFError, OSError):
                    has_ended = True
            if has_ended:
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(END_S)
                self.kill()
                return Answer(exit_code=self._child.returncode)
        return None

    def end(self) -> None:
        """End it; it is idle. Exit handlers of the function's module run."""
        with suppress(OSError):
            self._connection.send(None)  # a closed connection says OSError, too
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """Kill it with all that it has started. Idempotent."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._connection.close()
