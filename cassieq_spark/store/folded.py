"""Log an outage once a second, however many statements and connections wait for its end."""

from __future__ import annotations

import logging
import threading
from typing import Final

from cassieq_spark.log import get_logger

EACH_S: Final = 1.0
"""The time in which one of several like records is logged."""

OUTAGE: Final = "statement_retried"
"""The event of each retry while nodes are away."""

OF_DRIVER: Final = ("cassandra.cluster", "cassandra.connection", "cassandra.pool")


class Folded(logging.Filter):
    """Passes one of several like records a second; it says how many were left out before it.

    Records are alike if they have the same text from the driver, or if both are about a statement
    that is retried. Other events of ours pass, and so do records below a warning. If the logger has
    level DEBUG, somebody looks for a cause, and everything passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._last: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; it gets the number of those left out."""
        name = getattr(record, "event", None)
        if (
            record.levelno < logging.WARNING
            or name not in (None, OUTAGE)
            or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        ):
            return True
        key = record.name, record.levelno, name or str(record.msg)
        with self._guard:
            last_s, left_out = self._last.get(key, (float("-inf"), 0))
            if 0 <= record.created - last_s < EACH_S:
                self._last[key] = last_s, left_out + 1
                return False
            self._last[key] = record.created, 0
        if left_out:
            record.msg = f"{record.msg} left_out={left_out}"
            if name is not None:
                vars(record)["fields"] |= {"left_out": left_out}
        return True


_folded: Final = Folded()


def fold() -> None:
    """Fold the records of the driver, and of our store logger, about an outage. Idempotent.

    These are filters: levels and handlers stay the program's.
    """
    for logger in (get_logger("store"), *map(logging.getLogger, OF_DRIVER)):
        logger.addFilter(_folded)
