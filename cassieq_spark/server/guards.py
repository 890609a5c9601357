"""The guards: what every request passes before anything is done for it, whatever its door.

In this order. A refusal has the form of its door's errors, and nothing has changed by then.

1. **Connections** and the size of headers: before there is a request (`connection`).
2. **Method**: the address has it (405).
3. **Host**, where no key is asked: an address, ``localhost``, or a name that the gateway was given
   (403). Any site may give its own name this machine's address (DNS rebinding). Probes are exempt:
   load balancers and Kubernetes ask by names of their own.
4. **Origin**: no page of another site has sent it (403), where no key is asked, and for each form
   of the page, whose key is a cookie.
5. **Size**, as it is announced, and again as the body comes (413, `BodyLimit`).
6. **Who asks** (401; 403 for SQS): by headers alone if they prove it; else they name a key that is
   accepted, in a form that can be right. The signature covers the body, which is read only then
   (`Gate.authenticate`).
7. **Rights** (`Gate.authenticate`, and once more when the body has said about which queue it is).
8. **Body**: it is parsed, and a GET or HEAD that nobody has signed changes nothing (405).
9. **Validation**: each door's own.

`Guards` is 2 to 4: no route is reached by another way. What headers alone can refuse is refused
before the first byte of the body is asked for. A client that is still sending then sees the answer:
`connection.py` drains what it sends, and closes.

`Measured` is around all of them: latency by door and operation, errors by door and code, requests
in flight. An entry that fails in a batch is counted apart: the request as a whole succeeds. Every
label has a fixed list of values: an operation is named by its door once it is known to exist, and
no path, queue or account of a request gets into a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cassieq_spark import metrics, tracing
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.hosts import host_of, is_known, known_hosts
from cassieq_spark.model.shares import Holding
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.settings import GatewaySettings

Headers = list[tuple[bytes, bytes]]

Methods = Callable[[str], Iterable[str] | None]
"""The methods of a path, GET for HEAD, too; None: there is nothing."""

OURS: Final = ("same-origin", "none")
"""The values by which a browser says that no other site has made a request."""

_AUTHORIZATIONS: Final = ("aws4-hmac-sha256 ", "bearer ")

HOLDING: Final = "cassieq.holding"
"""The key of a request's scope for what its body holds of the budget of bytes."""

UNKNOWN: Final = 1 << 62
"""The length of a body of which only its end says so."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""They are answered also if no memory is left: that the gateway is busy is no reason to end it."""


class Refusal(Exception):
    """A request is refused before the client is asked."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def too_long(most_bytes: int) -> Refusal:
    """The refusal of a body that is longer than the limit."""
    return Refusal(
        413,
        f"The body of a request has at most {most_bytes:,} bytes here. Send less at once, or start "
        "the gateway with a larger --max-body.",
        {"Connection": "close"},
    )


def no_room() -> Refusal:
    """The refusal if the bodies and unread answers of all connections hold as much as they may."""
    return Refusal(
        503,
        "The gateway holds as many bytes of requests and answers as --max-memory allows. Send the "
        "request again later.",
        {"Connection": "close", "Retry-After": "1"},
    )


class Guards:
    """Refuses by method, host and origin; `BodyLimit` asks it about each request."""

    def __init__(self, settings: GatewaySettings, methods: Methods) -> None:
        """Prepare.

        Args:
            methods: What says which methods a path has.
        """
        self._methods = methods
        self._asks_keys = settings.checks_accounts
        # A page's origin has its port: it is that of the Host header, or a proxy's.
        self._proxies = frozenset(one.lower() for one in settings.host_names)
        self._names = known_hosts(settings.host, settings.host_names)

    def check(self, scope: Scope) -> None:
        """Return if a request passes.

        Raises:
            Refusal: It does not.
        """
        path: str = scope["path"]
        allowed = self._methods(path)
        is_read = scope["method"] in ("GET", "HEAD")
        if allowed is not None and ("GET" if is_read else scope["method"]) not in allowed:
            shown = ", ".join(sorted(allowed))
            raise Refusal(405, f"This address has the methods {shown}.", {"Allow": shown})
        hosts = headers_of(scope["headers"], b"host")
        if not self._asks_keys and path not in PROBES:
            for host in hosts:
                if not is_known(host, self._names):
                    raise Refusal(
                        403,
                        f"This gateway checks no accounts, and does not know the host "
                        f"{host[:100]!r}. Use an address or localhost, or start it with "
                        "--host-name for each further name, or with --auth.",
                    )
        is_page = door_of(path) == "ui"
        if not self._asks_keys or (is_page and not is_read):
            self._check_origin(scope, hosts, is_link=is_read and (is_page or path in OWN_PATHS))

    def _check_origin(self, scope: Scope, hosts: list[str], *, is_link: bool) -> None:
        """Refuse what a page of another site has made a browser send.

        Args:
            is_link: Whether it may be a link on another site that somebody has followed.
        """
        sites = headers_of(scope["headers"], b"sec-fetch-site")
        if is_link and headers_of(scope["headers"], b"sec-fetch-mode") == ["navigate"]:
            sites = []
        known = {*(host.lower() for host in hosts), *self._proxies}
        origins = headers_of(scope["headers"], b"origin")
        if not all(one in OURS for one in sites) or not all(
            host_of(one) in known for one in origins
        ):
            raise Refusal(
                403,
                "A page of another site has sent this request. Open the gateway's own page, or "
                "use a program.",
            )


def is_signed(scope: Scope) -> bool:
    """Whether a request claims to be signed in a way that no page of another site can make up.

    A browser asks before it sends such a header to another site. Anybody can write a URL: that it
    is presigned says something only where signatures are checked.
    """
    given = headers_of(scope["headers"], b"authorization")
    return any(one.lower().startswith(_AUTHORIZATIONS) for one in given)


# --- bodies ---------------------------------------------------------------------------------------


class BodyLimit:
    """ASGI middleware: a body is refused before it is read, or as it grows.

    It is the last that sees a request before the application, and holds the request's body as long
    as the application may know it. Reading more than is allowed raises the `Refusal`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        guard: Callable[[Scope], None],
        refused: Callable[[Refusal, Scope], Response],
    ) -> None:
        """Wrap an application.

        Args:
            guard: Looks at the headers of a request first, and raises its `Refusal`.
            refused: Makes the answer to a request that is refused by its headers.
        """
        self._app = app
        self._most_bytes = most_bytes
        self._guard = guard
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        holding: Holding | None = scope.get(HOLDING)
        app: ASGIApp = self._app
        try:
            try:
                self._guard(scope)
                self._check_size(scope, holding)
            except Refusal as refusal:
                app = response = self._refused(refusal, scope)
                if coming(scope["headers"]):
                    response.headers["Connection"] = "close"
            await app(scope, self._counted(receive, holding), send)
        finally:
            if holding is not None:
                holding.end()

    def _check_size(self, scope: Scope, holding: Holding | None) -> None:
        size = announced(scope["headers"])
        if size > self._most_bytes:
            raise too_long(self._most_bytes)
        # Some of it may have come with the headers.
        if (
            holding is not None
            and scope["path"] not in PROBES
            and not holding.fits(max(0, size - holding.size))
        ):
            raise no_room()

    def _counted(self, receive: Receive, holding: Holding | None) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most_bytes:
                raise too_long(self._most_bytes)
            if received and holding is not None and not holding.fits():
                raise no_room()
            return message

        return counted


def coming(headers: Headers) -> int:
    """Return how many bytes of a body may come after the headers."""
    return UNKNOWN if headers_of(headers, b"transfer-encoding") else announced(headers)


def announced(headers: Headers) -> int:
    """The length of a body as its headers say it; 0 if they do not."""
    found = headers_of(headers, b"content-length")
    return int(found[0]) if found and found[0].isascii() and found[0].isdigit() else 0


def headers_of(headers: Headers, name: bytes) -> list[str]:
    """All values of a header; names are in lower case."""
    return [value.decode("latin-1") for key, value in headers if key == name]


# --- what is measured -----------------------------------------------------------------------------

REST: Final = "/v1"
UI: Final = "/ui"
"""The paths of these doors begin so; all others are of SQS."""

M = TypeVar("M", Counter, Gauge, Histogram)

NO_OPERATION: Final = "unknown"
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
    """The facts known of a request so far.

    Attributes:
        code: The code of the error that is its answer.
        failed: Code and status of each entry that failed in a batch whose answer is no error.
    """

    door: str
    operation: str = NO_OPERATION
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
            (metrics.CLIENT_CALLS, lambda: backend.turns.calls),
            (metrics.CLIENT_CALLS_LIMIT, lambda: backend.turns.places),
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
            api=asked.door,
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
                    api=asked.door,
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
    """Return the notes on a request, which its door completes."""
    found = scope.get(_KEY)
    return found if isinstance(found, Asked) else Asked(NO_OPERATION)
