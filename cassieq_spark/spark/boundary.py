"""Turn an error that we raise to Spark into one bounded text, and nothing else.

Spark carries text only. It prints an error of a Python process with its whole traceback and with
each of its causes, puts that into a Java error, logs it in several places, and prints it again in
the errors that it makes of it. A cause is the Cassandra driver's dump, or a Java stack trace of
another job. So an error of ours leaves without its causes and its inner frames, which are logged
(event ``spark_error_shortened``, DEBUG): its message quotes what they said.

In a function of ``foreachBatch`` a long text also costs a stack. When the query is told to stop,
Spark looks into the function's error for an interruption, by a pattern that recurs for each
character after Py4J's words ``An error occurred while calling``: a thread's default stack of 1 MB
holds about 1,500 of them (`StreamExecution.PROXY_ERROR`, SPARK-48717; measured with 4.3.0). A Java
stack trace is longer. So no error of a Spark job leaves our code as Py4J's: it becomes one without
those words, or, if the job was interrupted, a short one by which Spark recognises that.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any, Final, ParamSpec, TypeVar, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkRuntimeError

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

MOST_CHARACTERS: Final = 2_000
"""The limit of one message. Our own messages are shorter, unless they quote what a user gave."""

INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""The errors that Spark takes for the end of a query that was told to stop (4.2 and 4.3)."""

_logger = get_logger("spark")


def spark_facing(cls: C) -> C:
    """Decorate a class whose public methods Spark calls: bound what they raise, see `crossing`."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, crossing(member, is_last=True))
    return cls


def crossing(function: Callable[P, R], *, is_last: bool = False) -> Callable[P, R]:
    """Decorate a function that Spark calls, or that runs Spark's jobs: bound what it raises.

    Errors of this package keep their class, their message's ends and their attributes. A job's
    error that Spark itself passes on as Py4J's becomes a `PySparkRuntimeError`. All others pass:
    they are Spark's, or mistakes in this package that need their traceback.

    Args:
        is_last: Nobody but Spark gets the error, so that a Python process of Spark ends with it.
    """
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            with _Crossing(is_last=is_last):
                yield from cast("Iterator[Any]", function(*args, **kwargs))

        return cast("Callable[P, R]", generate)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _Crossing(is_last=is_last):
            return function(*args, **kwargs)

    return call


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """Keep both ends of a long text: the first says what happened, the last what to do."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]} ... ({len(text) - most} characters left out) ... {text[-tail:]}"


def is_process_of_spark() -> bool:
    """Whether Spark started this process, for a task or for a call of a data source's methods."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")


class _Crossing:
    """A context manager without the frames that ``contextmanager`` adds to an error's text."""

    def __init__(self, *, is_last: bool) -> None:
        self._is_last = is_last

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CassieqError):
            _log(error)
            error.message = bounded(error.message)
            error.args = (error.message,)
            if self._is_last:
                _begin_with_ours()
            raise error.with_traceback(None) from None
        if isinstance(error, Py4JJavaError):
            _log(error)
            raise PySparkRuntimeError(_of_job(str(error))) from None


def _begin_with_ours() -> None:
    """Let our line be the first that Spark reports, in one of its Python processes.

    Without the variable, frames of Spark and of this file come first. The process ends with this
    error, so no other error lacks its traceback (`pyspark.util.handle_worker_exception`, 4.2, 4.3).
    """
    if is_process_of_spark():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _of_job(text: str) -> str:
    """The text that Py4J reports of a Java error, without Java's frames."""
    for name in INTERRUPTIONS:
        if name in text:
            # Spark recognises an interruption by these words.
            return (
                "py4j.protocol.Py4JJavaError: An error occurred while calling a Spark job: "
                f"{name}: the query was stopped, or its job cancelled"
            )
    said = [line for line in text.splitlines() if not line.lstrip().startswith(("at ", "... "))]
    # The first line is Py4J's own.
    return bounded("\n".join(said[1:]).removeprefix(": ").strip())


def _log(error: BaseException) -> None:
    event(_logger, "spark_error_shortened", error="".join(traceback.format_exception(error)))
