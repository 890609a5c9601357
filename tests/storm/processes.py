"""The processes of a storm, each with the same four verbs: start, kill, pause, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.fixtures.zygote import Zygote

ROOT: Final = Path(__file__).resolve().parents[2]


class Actor(Protocol):
    """What a fault is done to. Thread-safe only as far as each has one lane of faults."""

    def start(self) -> None:
        """It runs; nothing happens if it does."""

    def kill(self) -> None:
        """SIGKILL, to it and all it has started; nothing happens if it is down."""

    def pause(self) -> None:
        """SIGSTOP; nothing happens if it is down."""

    def resume(self) -> None:
        """SIGCONT; nothing happens if it is down."""


class Forked:
    """A forked child that runs a module's ``main``.

    Attributes:
        crashes: What it wrote when it ended by itself, which none of them does.
    """

    def __init__(self, zygote: Zygote, name: str, module: str, arguments: dict[str, Any]) -> None:
        self._zygote = zygote
        self._log = Path(arguments["directory"]) / f"{name}.log"
        self._request = {"module": module, "output": str(self._log)}
        self._arguments = arguments
        self._starts = 0
        self._pid: int | None = None
        self.crashes: list[str] = []

    def start(self) -> None:
        """See `Actor`. Each life draws other numbers, the same ones for the same seed."""
        if self._pid is None:
            seed = self._arguments["seed"] + 1_000_003 * self._starts
            arguments = {**self._arguments, "seed": seed}
            self._pid = self._zygote.ask({**self._request, "arguments": arguments})
            self._starts += 1

    def kill(self) -> None:
        """See `Actor`."""
        if self._pid is None:
            return
        os.kill(self._pid, signal.SIGKILL)  # nobody else has its pid before it is reaped
        code = self._zygote.ask({"reap": self._pid})
        self._pid = None
        if code != -signal.SIGKILL:
            tail = self._log.read_text("utf-8", errors="replace")[-4_000:]
            self.crashes.append(f"{self._log.stem} ended by itself ({code}):\n{tail}")

    def pause(self) -> None:
        """See `Actor`."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """See `Actor`."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)


class Program:
    """A program in a process group of its own: a Spark driver, with its JVM and its workers."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """See `Actor`."""
        if self.is_running:
            return
        self.kill()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=self._environment,
                start_new_session=True,
            )

    def tell(self, request: dict[str, Any]) -> None:
        """A line on its standard input."""
        if self._process is not None and self._process.stdin is not None and self.is_running:
            try:
                self._process.stdin.write(f"{json.dumps(request)}\n".encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                return

    def kill(self) -> None:
        """See `Actor`."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def pause(self) -> None:
        """See `Actor`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """See `Actor`."""
        self._signal(signal.SIGCONT)

    def kill_worker(self, number: int) -> str | None:
        """SIGKILL one of the Python processes below its JVM; its command's end."""
        if self._process is None:
            return None
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
            pythons = sorted((one for one in below if one.name().startswith("python")), key=_pid)
            if not pythons:
                return None
            chosen = pythons[number % len(pythons)]
            told = " ".join(chosen.cmdline()[-2:])
            chosen.kill()
        except psutil.NoSuchProcess:
            return None
        return told

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return


def _pid(process: psutil.Process) -> int:
    return process.pid
