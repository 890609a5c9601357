"""Defer log records of the event loop, which must not wait for a program's log handlers."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFERRED_S: Final = 0.1
"""The time that a deferred record waits for a call that ends and writes it."""


class _Deferring:
    """Log records of a thread that must not wait for a program's log handlers.

    The next call of `write_deferred` writes them, or a thread does a moment later.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self._records: deque[tuple[logging.Logger, logging.LogRecord]] = deque()
        self._has_some = threading.Event()
        self._pause = threading.Event()  # never set

    def begin(self) -> None:
        """Defer the records of this thread from now on."""
        self._has_some = threading.Event()
        self.thread = threading.get_ident()
        threading.Thread(target=self._write, name="cassieq-log", daemon=True).start()

    def log(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        *args: object,
        extra: Mapping[str, object],
        stacklevel: int,
    ) -> None:
        """Make a record, as ``logger.log`` does, and keep it for later."""
        code = sys._getframe(stacklevel)  # noqa: SLF001 - as `logging` does
        where = code.f_code.co_filename, code.f_lineno
        self._records.append(
            (
                logger,
                logger.makeRecord(
                    logger.name, level, *where, text, args, None, code.f_code.co_name, extra
                ),
            )
        )
        self._has_some.set()

    def write(self) -> None:
        """Write the records that were kept."""
        while self._records:
            try:
                logger, record = self._records.popleft()
            except IndexError:
                return  # another thread writes them
            try:
                logger.handle(record)
            except Exception:  # noqa: BLE001 - a program's handler ends no call, and no thread
                if logging.raiseExceptions:
                    traceback.print_exc()

    def _write(self) -> None:
        while True:
            self._has_some.wait()
            self._has_some.clear()
            self._pause.wait(DEFERRED_S)
            self.write()


kept: Final = _Deferring()


def log_of(logger: logging.Logger) -> Callable[..., None]:
    """Return ``logger.log``, or in a deferring thread a function that keeps the record."""
    return partial(kept.log, logger) if threading.get_ident() == kept.thread else logger.log


def defer_here() -> None:
    """Defer the records of this thread: it runs an event loop, which a handler would hold up."""
    kept.begin()


def write_deferred() -> None:
    """Write the records that were deferred."""
    kept.write()
