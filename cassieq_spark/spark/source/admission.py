"""Limit a micro-batch, and decide whether to wait for more (``...PerTrigger`` options)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from cassieq_spark.model.ids import ID_LIMIT

if TYPE_CHECKING:
    from cassieq_spark.clock import Clock
    from cassieq_spark.options import SourceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one micro-batch.

    Attributes:
        at_most: The most messages.
        at_most_bytes: The most bytes, as stored; None: no limit.
        at_least: Wait until this many are visible, or ``wait_s`` since some are; 0: do not wait.
    """

    at_most: int = ID_LIMIT
    at_most_bytes: int | None = None
    at_least: int = 0
    wait_s: float = 0

    @classmethod
    def of(cls, options: SourceOptions, limit: ReadLimit) -> Limits:
        """The limits for what Spark passes on: our own kind, or "all" for ``Trigger.Once``."""
        if isinstance(limit, ReadAllAvailable):
            return cls()
        return cls(
            at_most=options.max_messages_per_trigger or ID_LIMIT,
            at_most_bytes=options.max_bytes_per_trigger,
            at_least=options.min_messages_per_trigger or 0,
            wait_s=options.max_trigger_delay_s,
        )


def read_limit(options: SourceOptions) -> ReadLimit:
    """The limit that Spark has to pass back with each trigger.

    Each of Spark's own kinds is one limit, and none combines several (Spark 4.2, 4.3): this one
    only says that there are limits, and `Limits.of` knows them.
    """
    has_limits = (
        options.max_messages_per_trigger
        or options.max_bytes_per_trigger
        or options.min_messages_per_trigger
    )
    at_most = options.max_messages_per_trigger or ID_LIMIT
    return ReadMaxRows(at_most) if has_limits else ReadAllAvailable()


class Patience:
    """Waits until there is enough for a batch, and no longer than allowed (I10)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None

    def should_wait(self, found: int, limits: Limits) -> bool:
        """Whether the visible messages should wait for more, or for the first."""
        if found == 0 or found >= limits.at_least:
            self._since = None
            return found < limits.at_least
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since < limits.wait_s:
            return True
        self._since = None
        return False
