"""Report that a statement is retried: the cause, the number of sendings, and the next try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassandra import OperationTimedOut, Timeout, Unavailable
from cassandra.cluster import NoHostAvailable

from cassieq_spark.log import event, get_logger
from cassieq_spark.store.driver import LoginRefused

if TYPE_CHECKING:
    from cassieq_spark.entropy import Entropy
    from cassieq_spark.store.statements import Statement

_logger = get_logger("store")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The time and the sendings that a statement took so far.

    Attributes:
        seconds: The time since it was first sent.
        sent: The number of sendings.
    """

    seconds: float
    sent: int

    def __str__(self) -> str:
        """Describe it for an error."""
        times = "once" if self.sent == 1 else f"{self.sent} times"
        return f"{self.seconds:.1f} s, sent {times}"


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
