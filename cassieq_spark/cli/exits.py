"""Turn the end of a command into an exit code: errors, signals, and a reader that went away."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

import typer
from typer.core import TyperGroup

from cassieq_spark.cli.output import cannot_write, print_problem, silence
from cassieq_spark.clock import Clock
from cassieq_spark.errors import CassieqError, OutputFailed, UsageError

FAILED: Final = 1
USAGE: Final = 2
NOTHING: Final = 3
"""The command asked for messages, and there were none, or fewer than it asked for."""

OF_SIGNAL: Final = 128
"""Shells count from here: 130 after Ctrl-C, 141 if nobody reads standard output any more."""

EXIT_CODES: Final[dict[int, str]] = {
    0: "done",
    FAILED: "failed: the error is on standard error, with its code in brackets; `ack`: a receipt "
    "was stale or invalid, or its outcome is unknown; `repair` and `redrive`: something could not "
    "be done; `purge`, `delete` and `redrive`: you said no",
    USAGE: "usage: an unknown flag or option, or a value that is not allowed; nothing was done",
    NOTHING: "nothing there: `get`, `peek` and `dead show` found no message, or `consume` found "
    "fewer than `--count`",
    OF_SIGNAL + signal.SIGINT: "interrupted by Ctrl-C before it was done",
    OF_SIGNAL + signal.SIGPIPE: "the reader of standard output has gone away",
    OF_SIGNAL + signal.SIGTERM: "terminated before it was done",
}
"""The meaning of each code, for the guide; a test compares them."""

SLICE_S: Final = 0.1
"""How soon a pause notices a signal."""


class Commands(TyperGroup):
    """A command group whose errors are exit codes, however it is called."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with exit_codes():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Report the error that ends the block, and exit with its code."""
    try:
        yield
    except (CassieqError, BrokenPipeError) as error:
        raise typer.Exit(ended_by(error)) from error
    except KeyboardInterrupt as error:
        # Only that of `Interrupt` names a signal, which may be another than Ctrl-C.
        raise typer.Exit(OF_SIGNAL + next(iter(error.args), signal.SIGINT)) from error


def run_job(job: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a program that has one command, with the arguments of this process or others.

    Returns:
        Its exit code.
    """
    try:
        job(args=arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@contextmanager
def extra(name: str, user: str, kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Say how to install what a command needs, if an import in the block fails.

    Args:
        name: The extra of this package that has it.
        user: What needs it, as a subject with its verb.
    """
    try:
        yield
    except ImportError as error:
        raise kind(
            f"package {error.name!r} is not installed, and {user} it. Run: "
            f"pip install 'cassieq_spark[{name}]'"
        ) from error


def ended_by(error: CassieqError | OSError, tell: Callable[[str], None] = print_problem) -> int:
    """Report what has ended a command, and return its exit code.

    Args:
        error: An OSError comes from standard output itself.
        tell: Prints it on standard error.
    """
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return OF_SIGNAL + signal.SIGPIPE
    said = cannot_write("standard output", error) if isinstance(error, OSError) else error
    if isinstance(said, OutputFailed):
        silence(sys.stdout)
    tell(str(said))
    return USAGE if isinstance(said, UsageError) else FAILED


class Interrupt:
    """SIGINT and SIGTERM as a flag, while a command holds leases.

    An exception in the middle of a get would lose the receipts of what it had just claimed, and
    with them the means to give it back. A second signal is that exception: the user insists.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pause_until(self, clock: Clock, moment_s: float) -> None:
        """Return at a monotonic moment, or when a signal comes."""
        # Not Event.wait: a handler that sets an event while its waiter holds the lock hangs.
        while not self and (left_s := moment_s - clock.monotonic()) > 0:
            clock.wait(min(left_s, SLICE_S))

    def end(self, *, is_done: bool) -> None:
        """Exit with the signal's code, if one came before the command was done."""
        if self.number is not None and not is_done:
            raise typer.Exit(OF_SIGNAL + self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - how it is called
        if self.number is not None:
            raise KeyboardInterrupt(number)
        self.number = number
