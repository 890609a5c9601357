"""Measure the cost of a piece of work, by this process's counters."""

from __future__ import annotations

from cassieq_spark import metrics
from cassieq_spark.model.costs import Costs


class Meter:
    """Measures costs from its creation on.

    It also counts what runs beside it in the process; Spark's tasks have a process each.
    """

    def __init__(self) -> None:
        self._began = _counted()

    def read(self) -> Costs:
        """The costs since then."""
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
