"""Answer the probes of a supervisor such as Kubernetes: ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from cassieq_spark.errors import CassandraLoginFailed, CassieqError
from cassieq_spark.exporter.listen import LONGEST_S


def probes(
    loop: asyncio.AbstractEventLoop,
    problem: Callable[[], str | None],
    refusal: Callable[[], CassieqError | None],
) -> Callable[[Any, Any], list[bytes]]:
    """Return a WSGI application that asks a worker's event loop.

    ``/healthz`` has status 200 if the loop answers, whatever Cassandra does. It is 503 if the loop
    does not answer within the longest time of a connection, or if Cassandra refuses the login: only
    a restart helps then. ``/readyz`` has status 200 if messages are worked on or waited for.

    Args:
        problem: Called in the loop; says why nothing is worked on, or None.
        refusal: Returns the error by which Cassandra refuses the client, or None.
    """

    def asked(path: str) -> tuple[str, str]:
        if path == "/healthz":
            refused = refusal()
            return ("503", refused.code) if isinstance(refused, CassandraLoginFailed) else OK
        if path == "/readyz":
            why = problem()
            return OK if why is None else ("503", f"not ready: {why}")
        return "404", "ask for /healthz or /readyz"

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        told: Future[tuple[str, str]] = Future()
        try:
            loop.call_soon_threadsafe(lambda: told.set_result(asked(environ["PATH_INFO"])))
            status, text = told.result(LONGEST_S)
        except (TimeoutError, RuntimeError):  # or the loop is closed
            status, text = "503", "the worker does not answer"
        start_response(
            f"{status} {PHRASES[status]}", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return [f"{text}\n".encode()]

    return answer


OK: Final = ("200", "ok")
PHRASES: Final = {"200": "OK", "404": "Not Found", "503": "Service Unavailable"}
