"""Offer names of queues to a shell that completes a word: quickly, or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from cassieq_spark.cli.settings import Connection, find_file, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_S: Final = 1.0
"""How long a node may take to answer: a prompt that stands still is worse than no names."""

PATIENCE_S: Final = 2.0
"""How long the shell waits for all of it."""


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that begin so, of the cluster that the flags, the variables or the file name.

    Whatever goes wrong, there are no names, and nothing is printed: somebody is typing.
    """
    with contextlib.suppress(Exception), _silence(), _at_most(PATIENCE_S):
        connection = _connection(ctx.params)
        if connection.value("username") and connection.value("password") is None:
            return []  # it would have to be asked for
        with connection.open() as client:
            return [one.name for one in client.queues() if one.name.startswith(incomplete)]
    return []


def _connection(given: dict[str, Any]) -> Connection:
    by_name = {name.replace("_", ""): value for name, value in given.items()}
    flags = {one.name: by_name.get(one.name.lower()) for one in options_of("connection")}
    return Connection({**flags, "connectTimeout": CONNECT_S}, find_file(given.get("config_file")))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The driver logs what it could not reach."""
    logging.disable()
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
    ):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so long, if this is a process of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
