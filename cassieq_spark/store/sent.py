"""`Sent`: a statement that is under way, with its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from cassieq_spark.store.side_by_side import Patience
    from cassieq_spark.store.statements import Statement


@dataclass(slots=True, kw_only=True)
class Sent:
    """A statement that `CqlSession.start` has sent.

    Attributes:
        began_s: The monotonic time at which it was sent.
        limits: The limits of the block in which it was sent.
        answer: The rows, or the driver's error.
        failed_s: The monotonic time at which it failed without an answer.
    """

    statement: Statement
    params: tuple[Any, ...]
    began_s: float
    limits: Patience
    answer: asyncio.Future[list[Any] | BaseException] = field(init=False)
    failed_s: float | None = None

    def note_failure(self, now: float) -> None:
        """Note that it failed without an answer."""
        self.failed_s = now

    def wait_again(self, now: float) -> None:
        """Resume the count of time, as nobody waited since the failure."""
        if self.failed_s is not None:
            self.began_s += now - self.failed_s
            self.failed_s = now

    def ends_s(self, most_s: float, now: float) -> float:
        """Return the monotonic time after which it is not retried.

        Args:
            most_s: The longest time of its retries, without its block's limits.
        """
        its_own = self.began_s + min(most_s, self.limits.of_block_s(self.began_s))
        return min(its_own, now + self.limits.of_call_s)
