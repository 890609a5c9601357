"""Measure requests: latency by door and operation, errors by door and code, requests in flight.

An entry that fails in a batch is counted apart: the request as a whole succeeds.

Every label has a fixed list of values: an operation is named by its door once it is known to exist,
and no path, queue or account of a request gets into a label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from cassieq_spark import metrics, tracing
from cassieq_spark.log import event, get_logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cassieq_spark.server.backend import Backend

REST: Final = "/v1"
UI: Final = "/ui"
"""The paths of these doors begin so; all others are of SQS."""

M = TypeVar("M", Counter, Gauge, Histogram)

UNKNOWN: Final = "unknown"
"""The operation of a request that asks for none that exists."""

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30)
"""Upper ends in seconds: from a put on a node nearby to the store's own limit."""

OWN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""Paths that belong to no door. They are not measured: probes would hide everything else."""

_KEY: Final = "cassieq.asked"
_FIRST_ERROR: Final = 400


_access = get_logger("access")


@dataclass(slots=True)
class Asked:
    """What is known of a request so far.

    Attributes:
        code: The code of the error that is its answer.
        failed: Code and status of each entry that failed in a batch whose answer is no error.
    """

    door: str
    operation: str = UNKNOWN
    code: str | None = None
    status: int = 0
    failed: list[tuple[str, int]] = field(default_factory=list)


class RequestMetrics:
    """The metrics of one gateway's requests."""

    def __init__(self, registry: CollectorRegistry, backend: Backend) -> None:
        """Register them; they are 0."""

        def made(kind: type[M], of: metrics.Family, **more: Any) -> M:
            return kind(of.exported, of.meaning, of.labels, registry=registry, **more)

        duration = made(Histogram, metrics.HTTP_DURATION, buckets=BUCKETS_S)
        self._errors = made(Counter, metrics.HTTP_ERRORS)
        self._entry_errors = made(Counter, metrics.HTTP_ENTRY_ERRORS)
        in_flight = made(Gauge, metrics.HTTP_IN_FLIGHT)
        # To look for its labels takes longer than to count: they are few.
        self._in_flight = cache(in_flight.labels)
        self._took = cache(duration.labels)
        for of, ask in (
            (metrics.LONG_POLLS, lambda: backend.waiting),
            (metrics.CLIENT_CALLS, lambda: backend.calls),
            (metrics.CLIENT_CALLS_LIMIT, lambda: backend.most_calls),
        ):
            made(Gauge, of).set_function(ask)

    def begin(self, asked: Asked) -> float:
        """Count a request as in flight; returns when it began."""
        self._in_flight(asked.door).inc()
        return perf_counter()

    def end(self, asked: Asked, began_s: float) -> None:
        """Note how a request has ended. One whose client went away has no status."""
        self._in_flight(asked.door).dec()
        took_s = perf_counter() - began_s
        self._took(asked.door, asked.operation).observe(took_s)
        event(
            _access,
            "request_answered",
            door=asked.door,
            operation=asked.operation,
            status=asked.status,
            took_ms=round(took_s * 1000, 1),
            **({"error": asked.code} if asked.code else {}),
        )
        if asked.status >= _FIRST_ERROR:
            code = asked.code or f"http_{asked.status}"
            self._errors.labels(asked.door, code, str(asked.status)).inc()
            return
        for code, status in asked.failed:
            self._entry_errors.labels(asked.door, code, str(status)).inc()


class Measured:
    """ASGI middleware that measures and traces the requests of all doors."""

    def __init__(self, app: ASGIApp, *, requests: RequestMetrics) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note how it ends."""
        if scope["type"] != "http" or scope["path"] in OWN_PATHS:
            await self._app(scope, receive, send)
            return
        asked = scope[_KEY] = Asked(door_of(scope["path"]))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                asked.status = message["status"]
            await send(message)

        began_s = self._requests.begin(asked)
        with tracing.request(scope["method"], scope["headers"]) as span:
            try:
                await self._app(scope, receive, sending)
            finally:
                self._requests.end(asked, began_s)
                span.end(
                    door=asked.door,
                    operation=asked.operation,
                    status=asked.status,
                    code=asked.code,
                )


def door_of(path: str) -> str:
    """The door that a path leads to."""
    if path.startswith(f"{REST}/"):
        return "rest"
    return "ui" if path == UI or path.startswith(f"{UI}/") else "sqs"


def asked_of(scope: Scope) -> Asked:
    """What is noted of a request, for its door to complete."""
    found = scope.get(_KEY)
    return found if isinstance(found, Asked) else Asked(UNKNOWN)
