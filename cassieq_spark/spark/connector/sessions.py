"""Close a connector session whose schema refresh is stuck; the next session is a new one.

In Java driver 4.18.1, which connector 3.5.1 brings, a schema refresh that fails before its first
query, because the control connection is away at that moment, never clears its mark
(``currentSchemaRefresh`` in ``MetadataManager.startSchemaRequest``). Each later refresh of that
session then waits for it, for ever. The connector refreshes before each write, without a timeout,
and keeps a session for an hour: one node that dies at a bad moment would block a query until its
program is restarted. A storm has found this (docs/reliability.md);
``tests/fault/test_stuck_session`` shows that the driver does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Self

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from cassieq_spark.clock import SystemClock
from cassieq_spark.log import event, get_logger
from cassieq_spark.spark.sink import JOB_GROUP

CONNECTOR_OBJECT: Final = "com.datastax.spark.connector.cql.CassandraConnector$"

LOOKS_EVERY_S: Final = 30.0
"""The time between two looks of the watch while a write has no Spark job."""

AGREEMENT_S: Final = 10.0
"""The time that the driver waits for nodes to agree on a schema; the connector does not change
it."""

POLL_S: Final = 0.1

_closings_lock = threading.Lock()
_closings = 0
"""Sessions closed by any write: a write whose session another one closes must try again, too."""

_logger = get_logger("spark")


def saving(save: Callable[[], None], rows: DataFrame, *, timeout_s: float) -> None:
    """Run ``save()``, a write of these rows by the connector; once more if its session was stuck.

    Args:
        timeout_s: The timeout of one query of a refresh: the connector's connect timeout.

    Raises:
        Exception: Whatever ``save`` has raised.
    """
    with _Watch(rows.sparkSession, timeout_s) as watch:
        try:
            save()
        except Exception:
            if not watch.has_closed_stuck_sessions():
                raise
            save()  # the same rows, bytes and write times into the same places (I7)


def java_class(context: SparkContext, name: str, *, initialize: bool) -> Any:
    """Find a class by the class loader that Spark itself uses for data sources.

    Raises:
        Py4JJavaError: No class has that name.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - Spark has no public way to ask
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.java.lang.Class.forName(name, initialize, loader)


def connector_of(context: SparkContext) -> Any:
    """Scala's object that keeps the sessions of this JVM."""
    found = java_class(context, CONNECTOR_OBJECT, initialize=True)
    return found.getField("MODULE$").get(None)


class _Watch:
    """Looks at the connector's sessions, in a thread, while the write does not run."""

    def __init__(self, spark: SparkSession, timeout_s: float) -> None:
        context = spark.sparkContext
        self._connector = connector_of(context)
        self._group = context.getLocalProperty(JOB_GROUP)
        self._tracker = context.statusTracker()
        # A refresh may wait for another to end; each waits for agreement, and for its own queries.
        self._answers_within_s = 2 * (AGREEMENT_S + 2 * timeout_s)
        self._closings_before = _closings
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="cassieq-connector", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def has_closed_stuck_sessions(self) -> bool:
        """Whether any write has closed one since this began; then the next session is new."""
        if _closings == self._closings_before:
            self._try(self._close_stuck)
        if _closings == self._closings_before:
            return False
        self._try(self._connector.evictCache)  # only what nobody uses any more
        return True

    def _look(self) -> None:
        while not self._is_over.wait(LOOKS_EVERY_S):
            self._try(self._close_stuck)

    def _close_stuck(self) -> None:
        """Close each session in which a refresh does not end, by value or by error."""
        global _closings  # noqa: PLW0603 - of this process, as the connector's sessions are
        if self._is_running():
            return
        failed, stuck = self._asked(self._sessions())
        # A refresh that ends by an error is what makes a session stick: the one after it shows
        # that.
        stuck += self._asked(failed)[1]
        for session in stuck:
            if self._is_over.is_set() or self._is_running():
                return
            with _closings_lock:
                _closings += 1  # before whoever waits for the session gets its error
            session.forceCloseAsync()
            event(_logger, "connector_session_closed", session=session.getName())

    def _asked(self, sessions: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return (those whose refresh has failed, those whose refresh has not ended in time)."""
        waiting = [
            (session, session.refreshSchemaAsync().toCompletableFuture()) for session in sessions
        ]
        failed: list[Any] = []
        clock = SystemClock()
        ends_s = clock.monotonic() + self._answers_within_s
        while waiting and clock.monotonic() < ends_s and not self._is_over.wait(POLL_S):
            failed += [session for session, one in waiting if one.isCompletedExceptionally()]
            waiting = [(session, one) for session, one in waiting if not one.isDone()]
        return failed, [session for session, _ in waiting]

    @staticmethod
    def _try(step: Callable[[], object]) -> None:
        """Ignore a JVM that is shutting down: the write's own error is the one to report."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - as above
            event(_logger, "connector_look_failed", error=str(error))

    def _is_running(self) -> bool:
        """Whether the write has its Spark job: from then on it needs no schema."""
        ours = self._tracker.getJobIdsForGroup(self._group)
        return not set(ours).isdisjoint(self._tracker.getActiveJobsIds())

    def _sessions(self) -> list[Any]:
        found, values = [], self._connector.sessionCache().cache().valuesIterator()
        while values.hasNext():
            found.append(values.next())
        return [one for one in found if not one.closeFuture().toCompletableFuture().isDone()]
