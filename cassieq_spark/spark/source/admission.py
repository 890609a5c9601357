"""How much a micro-batch may take, and whether it is worth one yet (``...PerTrigger`` options)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from cassieq_spark.model.ids import ID_LIMIT

if TYPE_CHECKING:
    from cassieq_spark.clock import Clock
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.get.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one micro-batch.

    Attributes:
        at_most: Messages.
        at_most_bytes: As they are stored; None: no limit.
        at_least: So many must be visible, or ``wait_s`` over since some are; 0: take what is there.
    """

    at_most: int = ID_LIMIT
    at_most_bytes: int | None = None
    at_least: int = 0
    wait_s: float = 0

    @classmethod
    def of(cls, options: SourceOptions, limit: ReadLimit) -> Limits:
        """For the limit that Spark hands on: ours, or "all" for ``Trigger.Once``."""
        if isinstance(limit, ReadAllAvailable):
            return cls()
        return cls(
            at_most=options.max_messages_per_trigger or ID_LIMIT,
            at_most_bytes=options.max_bytes_per_trigger,
            at_least=options.min_messages_per_trigger or 0,
            wait_s=options.max_trigger_delay_s,
        )


def read_limit(options: SourceOptions) -> ReadLimit:
    """What Spark is to hand back with each trigger.

    Its own kinds are one limit each, and there is none for several (Spark 4.2, 4.3): this one says
    that there are limits, and `Limits.of` knows them.
    """
    has_limits = (
        options.max_messages_per_trigger
        or options.max_bytes_per_trigger
        or options.min_messages_per_trigger
    )
    at_most = options.max_messages_per_trigger or ID_LIMIT
    return ReadMaxRows(at_most) if has_limits else ReadAllAvailable()


class Patience:
    """Waits until there is enough for a batch, and no longer than it may (I10)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None

    def should_wait(self, reader: Reader, limits: Limits) -> bool:
        """Whether what is visible is to wait for more. Counts it, and claims nothing."""
        if not limits.at_least:
            return False
        found = reader.count(limits.at_least)
        if found == 0 or found >= limits.at_least:
            self._since = None
            return False
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since < limits.wait_s:
            return True
        self._since = None
        return False
