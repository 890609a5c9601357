"""`Failures`: what the threads of a consumer have failed with, for whoever waits for them."""

from __future__ import annotations

from cassieq_spark.errors import CassieqError, QueueDeleted


class Failures:
    """Raises a failure in all who waited when it came, or else once in the next caller.

    If only one of them heard of it, each would wait for a failure of its own, one after the other.
    Not thread-safe.

    Attributes:
        count: How many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: Exception | None = None
        self._is_told = False
        self._end: Exception | None = None

    def note(self, failure: Exception, *, is_end: bool = False) -> None:
        """Note a failure; one that ends the consumer is raised every time."""
        if is_end or isinstance(failure, QueueDeleted) or not isinstance(failure, CassieqError):
            self._end = failure
        self._last, self._is_told = failure, False
        self.count += 1

    def over(self) -> None:
        """Note that the consumer works again."""
        self._last = None

    def check(self, known: int) -> None:
        """Raise a failure that is for the caller.

        Args:
            known: `count` when the caller began to wait.
        """
        is_for_caller = self.count > known or not self._is_told
        failure = (self._last if is_for_caller else None) or self._end
        if failure is not None:
            self._is_told = True
            raise failure
