"""The process that calls the function, one message after the other.

The function is found and checked before any message is claimed. The process ends when the one that
gives it messages is gone, whatever the function does just then.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import pickle
import re
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from cassieq_spark import log
from cassieq_spark.errors import FunctionInvalid
from cassieq_spark.queue.handling import Failure, words_of
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.routes import awaits, check_function

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


def load(name: str, *, is_async: bool = False) -> Callable[[Any], Any]:
    """Import the module and return the function, which takes one message.

    Args:
        is_async: Whether it must be an ``async def``.

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
    checked = check_function(found, name)
    if is_async and not awaits(checked):
        raise FunctionInvalid(
            f"{name!r} is no async def, and --async has several run side by side. Make each "
            "function an async def, or use --concurrency"
        )
    return checked


MOST_TRACE: Final = 8_000
"""The most characters of a traceback's beginning, and of its end, on standard error."""


HEAD: Final = struct.Struct("!I")
"""What goes before each pickled object on the connection: the number of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The message of a child to its worker: once when the function is found, then for each message.

    Attributes:
        number: The number of the call; 0: that of the function.
        refused: Why the function cannot be used; None: it can be called.
        failure: What it has raised; None: it has returned.
        exit_code: Of a process that has ended instead; of a signal the negative number.
        memory_bytes: The memory that the process has after the call.
    """

    number: int
    refused: str | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    memory_bytes: int = field(default=0, compare=False)


class _Parent:
    """The connection to the worker."""

    def __init__(self, descriptor: int) -> None:
        # What this process starts must not hold the connection open after its end.
        os.set_inheritable(descriptor, False)
        self._file = socket.socket(fileno=descriptor).makefile("rwb")

    def send(self, answer: Answer) -> None:
        data = pickle.dumps(answer)
        self._file.write(HEAD.pack(len(data)) + data)
        self._file.flush()

    def listen(self, put: Callable[[Any], object]) -> None:
        """Take calls in a thread, also while the function runs, and say that it can be called.

        Args:
            put: Gets the number of a call and its message, or None to cancel it; or None: the end.
        """
        thread = threading.Thread(
            target=self._receive, args=(put,), name="cassieq-parent", daemon=True
        )
        thread.start()
        self.send(Answer(number=0))

    def _receive(self, put: Callable[[Any], object]) -> None:
        with suppress(OSError, struct.error):
            while True:
                (size,) = HEAD.unpack(self._file.read(HEAD.size))
                put(pickle.loads(self._file.read(size)))  # noqa: S301 - our own parent
        # The parent is gone, and the message will be given to somebody else: no two should work on
        # it for long. What the function has started is in the process group, too.
        os.killpg(0, signal.SIGKILL)


def main(name: str, descriptor: int, concurrency: int, level: str, form: str) -> None:
    """Serve until the other end says that it is over, or is gone.

    Args:
        concurrency: The number of messages to work on at once; 1: one after the other.
        level: The lowest level to log.
        form: The form of the log; "json": lines of JSON.
    """
    _lines.begin(is_json=form == "json")
    # A service manager signals all processes of a service: the parent decides when this one ends.
    # A handler that does nothing is not inherited by programs that the function starts; SIG_IGN is.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    parent = _Parent(descriptor)
    try:
        function = load(name, is_async=concurrency > 1)
    except FunctionInvalid as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ImportError):
            _print("the module cannot be imported", error.__cause__)
        parent.send(Answer(number=0, refused=error.message))
        return
    _lines.write(level)
    with asyncio.Runner() as runner:
        if concurrency > 1:
            runner.run(_side_by_side(function, parent))
        else:
            _one_by_one(function, parent, runner)


def _one_by_one(function: Callable[[Any], Any], parent: _Parent, runner: asyncio.Runner) -> None:
    calls: SimpleQueue[tuple[int, Delivery] | None] = SimpleQueue()
    parent.listen(calls.put)
    while (call := calls.get()) is not None:
        number, message = call
        failure = None
        _working_on.set(message.message_id)
        try:
            returned = function(message)
            if inspect.isawaitable(returned):
                runner.run(_awaited(returned), context=copy_context())
        except BaseException as error:  # noqa: BLE001 - SystemExit, too: one message ends no process
            failure = _failed(message, error)
        parent.send(Answer(number=number, failure=failure, memory_bytes=_memory_bytes()))


async def _side_by_side(function: Callable[[Any], Any], parent: _Parent) -> None:
    loop = asyncio.get_running_loop()
    calls: asyncio.Queue[tuple[int, Delivery | None] | None] = asyncio.Queue()
    running: dict[int, asyncio.Task[None]] = {}

    async def work(number: int, message: Delivery) -> None:
        failure = None
        _working_on.set(message.message_id)
        try:
            await function(message)
        except BaseException as error:  # noqa: BLE001 - as above, and a cancel by the parent
            failure = _failed(message, error)
        del running[number]
        parent.send(Answer(number=number, failure=failure, memory_bytes=_memory_bytes()))

    parent.listen(lambda call: loop.call_soon_threadsafe(calls.put_nowait, call))
    while (call := await calls.get()) is not None:
        number, message = call
        if message is not None:
            running[number] = loop.create_task(work(number, message))
        elif number in running:
            running[number].cancel()


def _memory_bytes() -> int:
    """Return the memory that this process has; where there is no /proc, the most that it had."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1_024


def _failed(message: Delivery, error: BaseException) -> Failure:
    failure = Failure.of(error)
    if not failure.is_asked:
        _print(f"message {message.message_id} failed", error.__cause__ or error)
    return failure


def _print(what: str, error: BaseException) -> None:
    """Print when and why it failed, in one write: other processes print to the same log."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    if (left_out := len(trace) - 2 * MOST_TRACE) > 0:
        cut = f"\n... {left_out:,} characters are left out ...\n"
        trace = f"{trace[:MOST_TRACE]}{cut}{trace[-MOST_TRACE:]}"
    known = {"name": _LOGGER, "levelno": logging.WARNING, "levelname": "WARNING"}
    more = {"exc_text": trace, "message_id": _working_on.get()}
    record = logging.makeLogRecord({**known, **more, "msg": what})
    with suppress(OSError):  # a log that is full or closed ends no process
        sys.stderr.write(f"{_lines.formatter.format(record)}\n")
        sys.stderr.flush()


_LOGGER: Final = "cassieq_spark.worker"

_working_on: Final[ContextVar[str | None]] = ContextVar("cassieq_message", default=None)
"""The id of the message that the present code works on."""


class _Lines:
    """The form of this process's log, which is the worker's.

    Records of the function have the message's id as ``message_id``. They are written in this form
    if the function's module sets up no logging of its own.
    """

    def __init__(self) -> None:
        self.formatter = log.formatter(is_json=False)

    def begin(self, *, is_json: bool) -> None:
        """Give each record of this process the id of its message."""
        self.formatter = log.formatter(is_json=is_json)
        make = logging.getLogRecordFactory()

        def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            record.message_id = _working_on.get()
            return record

        logging.setLogRecordFactory(made)

    def write(self, level: str) -> None:
        """Write records, unless somebody else does."""
        root = logging.getLogger()
        if not root.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(self.formatter)
            root.addHandler(handler)
            root.setLevel(level)


_lines: Final = _Lines()


async def _awaited(returned: Any) -> None:
    await returned
