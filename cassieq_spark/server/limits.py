"""What is refused before a body is read, and while it is read.

What headers alone can refuse is refused before the first byte of the body is asked for. A client
that is still sending then sees the answer: `connection.py` drains what it sends, and closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cassieq_spark.model.shares import Holding

    Headers = list[tuple[bytes, bytes]]

HOLDING: Final = "cassieq.holding"
"""Where a request's scope has what its body holds of the budget of bytes."""

UNKNOWN: Final = 1 << 62
"""The length of a body of which only its end says so."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""They are answered also if no memory is left: that the gateway is busy is no reason to end it."""


HEADER_BYTES: Final = 32
"""What each header counts beyond its name and value, as in HTTP/2 (RFC 9113, 6.5.2). Else very many
tiny ones would fit, and each takes time in which nobody else is served."""


class HeaderBytes:
    """The bytes of a request's headers, and of the lines between and after its chunks.

    The parser keeps the parts of a line that has no end, and says nothing of them. They have the
    same limit, but are not counted once more when the line is whole.

    Attributes:
        unsaid: What the parser got since it last said something.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Count anew."""
        self._said = 0
        self.unsaid = 0

    def fits(self, size: int) -> bool:
        """Count what the parser says; return whether all of it is within the limit."""
        self._said += size
        self.unsaid = 0
        return self._said <= self._most

    def has_endless(self, size: int) -> bool:
        """Whether the parser keeps a line that is too long, and now got so many bytes more."""
        self.unsaid += size
        return self.unsaid > self._most + size


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
    """How many bytes of a body may come after the headers."""
    return UNKNOWN if headers_of(headers, b"transfer-encoding") else announced(headers)


def announced(headers: Headers) -> int:
    """The length of a body as its headers say it; 0 if they do not."""
    found = headers_of(headers, b"content-length")
    return int(found[0]) if found and found[0].isascii() and found[0].isdigit() else 0


def headers_of(headers: Headers, name: bytes) -> list[str]:
    """All values of a header; names are in lower case."""
    return [value.decode("latin-1") for key, value in headers if key == name]
