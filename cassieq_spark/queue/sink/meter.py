"""What a piece of work has cost so far, by this process's counters."""

from __future__ import annotations

from cassieq_spark import metrics
from cassieq_spark.model.costs import Costs


class Meter:
    """From its creation on.

    What runs beside it in one process is counted, too: Spark's tasks have a Python process each.
    """

    def __init__(self) -> None:
        self._began = _counted()

    def read(self) -> Costs:
        """Since then."""
        began, now = self._began, _counted()
        return Costs(
            chunks=now.chunks - began.chunks,
            size_bytes=now.size_bytes - began.size_bytes,
            lwts=now.lwts - began.lwts,
            retries=now.retries - began.retries,
        )


def _counted() -> Costs:
    return Costs(
        chunks=metrics.CHUNKS_WRITTEN.value,
        size_bytes=metrics.BYTES_WRITTEN.value,
        lwts=metrics.CAS_APPLIED.value + metrics.CAS_REFUSED.value + metrics.CAS_UNKNOWN.value,
        retries=metrics.RETRIES.value,
    )
