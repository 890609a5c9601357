"""Keep log records of an event loop, which must not wait for a program's log handlers."""

from __future__ import annotations

import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

DEFERRED_S: Final = 0.1
"""How long a deferred record waits for a call that ends and writes it."""


class _Deferring:
    """Records of a thread that must not wait for a program's log handlers.

    They are written by whoever is next to call `write_deferred`, or by a thread, a moment later.
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
        """Write what was kept."""
        while self._records:
            try:
                logger, record = self._records.popleft()
            except IndexError:
                return  # another thread is at it
            logger.handle(record)

    def _write(self) -> None:
        while True:
            self._has_some.wait()
            self._has_some.clear()
            self._pause.wait(DEFERRED_S)
            self.write()


kept: Final = _Deferring()


def log_of(logger: logging.Logger) -> Callable[..., None]:
    """``logger.log``, or what keeps a record of this thread for later."""
    return partial(kept.log, logger) if threading.get_ident() == kept.thread else logger.log


def defer_here() -> None:
    """Defer the records of this thread: an event loop, which a handler would hold up."""
    kept.begin()


def write_deferred() -> None:
    """Write records that were deferred, if there are some."""
    kept.write()
