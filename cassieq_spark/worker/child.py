"""The process that calls the function, one message after the other.

The function is found and checked before any message is claimed. The process ends when the one that
gives it messages is gone, whatever the function does just then.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import FunctionInvalid
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.queue.handling import Failure, words_of
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.routes import check_function

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_name(name: str) -> str:
    """Return the name if it has the form ``module:function``.

    Raises:
        FunctionInvalid: It has another form.
    """
    if not _NAME.fullmatch(name):
        raise FunctionInvalid(
            f"{name!r} is no name of a function. Write module:function, such as shop.mail:send"
        )
    return name


def load(name: str) -> Callable[[Any], Any]:
    """Import the module and return the function, which takes one message.

    Raises:
        FunctionInvalid: The module cannot be imported or has no such function, or what it has
            cannot be called with one message.
    """
    module_name, _, path = check_name(name).partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        # Whatever the module does when it is imported: it is the user's.
        raise FunctionInvalid(
            f"module {module_name!r} of {name!r} cannot be imported: {words_of(error)}. Modules "
            "are looked for in the current directory and in PYTHONPATH"
        ) from error
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise FunctionInvalid(f"module {module_name!r} has no {path!r}") from error
    return check_function(found, name)


MOST_TRACE: Final = 8_000
"""The most characters of a traceback's beginning, and of its end, on standard error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The message of a child to its worker: once when the function is found, then for each message.

    Attributes:
        refused: Why the function cannot be used; None: it can be called.
        failure: What it has raised; None: it has returned.
        exit_code: Of a process that has ended instead; of a signal the negative number.
    """

    refused: str | None = None
    failure: Failure | None = None
    exit_code: int | None = None


def main(name: str, descriptor: int) -> None:
    """Serve until the other end says that it is over, or is gone."""
    # What this process starts must not hold the connection open after its end.
    os.set_inheritable(descriptor, False)
    # A service manager signals all processes of a service: the parent decides when this one ends.
    # A handler that does nothing is not inherited by programs that the function starts; SIG_IGN is.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    connection = Connection(descriptor)
    try:
        function = load(name)
    except FunctionInvalid as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ImportError):
            _print("the module cannot be imported", error.__cause__)
        connection.send(Answer(error.message))
        return
    messages: SimpleQueue[Delivery | None] = SimpleQueue()
    threading.Thread(
        target=_receive, args=(connection, messages), name="cassieq-parent", daemon=True
    ).start()
    connection.send(Answer())
    with asyncio.Runner() as runner:
        while (message := messages.get()) is not None:
            connection.send(_outcome(function, message, runner))


def _receive(connection: Connection, messages: SimpleQueue[Delivery | None]) -> None:
    """Take messages, also while the function runs: so the end of the parent is noticed at once."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        # The message will be given to somebody else: no two should work on it for long. What the
        # function has started is in the process group, too.
        os.killpg(0, signal.SIGKILL)


def _outcome(function: Callable[[Any], Any], message: Delivery, runner: asyncio.Runner) -> Answer:
    try:
        returned = function(message)
        if inspect.isawaitable(returned):
            runner.run(_awaited(returned))
    except BaseException as error:  # noqa: BLE001 - SystemExit, too: one message ends no process
        failure = Failure.of(error)
        if not failure.is_asked:
            _print(f"message {message.message_id} failed", error.__cause__ or error)
        return Answer(failure=failure)
    return Answer()


def _print(what: str, error: BaseException) -> None:
    """Print when and why it failed, in one write: other processes print to the same log."""
    trace = "".join(traceback.format_exception(error))
    if (left_out := len(trace) - 2 * MOST_TRACE) > 0:
        cut = f"\n... {left_out:,} characters are left out ...\n"
        trace = f"{trace[:MOST_TRACE]}{cut}{trace[-MOST_TRACE:]}"
    moment = show_time(time_of(SystemClock().now_us()))
    with suppress(OSError):  # a log that is full or closed ends no process
        sys.stderr.write(f"{moment} {what}: {trace}")
        sys.stderr.flush()


async def _awaited(returned: Any) -> None:
    await returned
