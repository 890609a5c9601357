"""Report that statements are retried: the cause, the next try; and an outage once a second."""

from __future__ import annotations

import logging
import threading
from typing import Final

from cassandra import OperationTimedOut, Timeout, Unavailable
from cassandra.cluster import NoHostAvailable

from cassieq_spark.entropy import Entropy
from cassieq_spark.log import event, get_logger
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.translate import LoginRefused

_logger = get_logger("store")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


def waited(seconds: float, sent: int) -> str:
    """Describe for an error the time since a statement was first sent, and how often it was."""
    return f"{seconds:.1f} s, sent {'once' if sent == 1 else f'{sent} times'}"


def pause_s(sent: int, entropy: Entropy) -> float:
    """Return the pause of `CqlSession.run` before it retries: random, and longer each time."""
    return min(_LONGEST_PAUSE_S, entropy.jitter(_FIRST_PAUSE_S, min(sent - 1, 6)))


def tell(
    statement: Statement, error: BaseException | None, *, sent: int, pause_s: float, left_s: float
) -> None:
    """Log that a statement is retried.

    Args:
        error: The driver's error.
        pause_s: The time until the next try.
        left_s: The time until the last one.
    """
    event(
        _logger,
        "statement_retried",
        statement=statement.name,
        cause=cause_of(error),
        attempt=sent,
        next_try_s=round(pause_s, 2),
        gives_up_in_s=round(max(0.0, left_s), 1),
        error=f"{type(error).__name__}: {error}",
    )


def cause_of(error: BaseException | None) -> str:
    """Describe the driver's error in few words."""
    if isinstance(error, NoHostAvailable):
        is_refused = any(isinstance(one, LoginRefused) for one in error.errors.values())
        return "the login is refused" if is_refused else "no node can be reached"
    if isinstance(error, Unavailable) and error.required_replicas is not None:
        return (
            f"{error.alive_replicas} of the {error.required_replicas} replicas that are needed are "
            "up"
        )
    if isinstance(error, Timeout | OperationTimedOut):
        return "no answer came in time"
    return type(error).__name__


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
