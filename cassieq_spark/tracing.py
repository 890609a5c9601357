"""Trace verbs and requests by OpenTelemetry, in a program that has set it up; otherwise at no cost.

A program that exports spans has imported the API. In all other programs this module imports
nothing, and a verb pays for one look into `sys.modules`. The context travels with a message, as the
header ``traceparent`` of W3C Trace Context. Spans have the attributes of OpenTelemetry's messaging
conventions, and never a body, a receipt or a key.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError
from cassieq_spark.model.sizes import MAX_EXTRA_BYTES

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation import tracecontext
else:

    class _Later:
        """A module that is imported when something of it is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    trace = _Later("opentelemetry.trace")
    tracecontext = _Later("opentelemetry.trace.propagation.tracecontext")

P = ParamSpec("P")
R = TypeVar("R")

SYSTEM: Final = "cassieq"
"""The value of ``messaging.system``."""

PARENT: Final = "traceparent"
"""The header of a message that carries the context of its put."""

MOST_LINKS: Final = 128
"""The most links of a span: an SDK keeps as many by default."""

_SERVER_FAULT: Final = 500


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Received(Protocol):
    @property
    def message_id(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


S = TypeVar("S", bound=_Named)
M = TypeVar("M", bound=_Received)


def is_on() -> bool:
    """Whether the program may export spans."""
    return "opentelemetry.trace" in sys.modules


# --- verbs ----------------------------------------------------------------------------------------


@contextmanager
def sending(queue: str, given: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Open a span around a put; yield headers to add to the messages, none if nothing is recorded.

    Args:
        given: The messages' own headers. A context that they carry already is linked, and kept.
    """
    if not is_on():
        yield {}
        return
    attributes = _attributes("put", "send", queue, len(given))
    with _span("put", trace.SpanKind.PRODUCER, _links(given), attributes) as span:
        yield _carrier(span)


async def received(queue: str, get: Awaitable[list[M]]) -> list[M]:
    """Get messages, and make a span with links to their puts if there are some.

    The span is made afterwards: links are known then, and a poll that finds nothing leaves none.
    """
    if not is_on():
        return await get
    began_us = SystemClock().now_us()
    try:
        found = await get
    except CassieqError as error:
        _end_receive(queue, began_us, [], error)
        raise
    if found:
        _end_receive(queue, began_us, found, None)
    return found


Verb = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


def settles(operation: str) -> Callable[[Verb[S, P, R]], Verb[S, P, R]]:
    """Decorate a verb of a queue's handle that settles messages: open a span around it."""

    def decorate(verb: Verb[S, P, R]) -> Verb[S, P, R]:
        @functools.wraps(verb)
        async def outer(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not is_on():
                return await verb(self, *args, **kwargs)
            given = args[0] if args else None
            count = len(given) if isinstance(given, list | tuple) else 1
            with settling(operation, self.name, count):
                return await verb(self, *args, **kwargs)

        return outer

    return decorate


@contextmanager
def settling(
    operation: str, queue: str, count: int, asked_in: Iterable[trace.SpanContext] = ()
) -> Iterator[None]:
    """Open a span around an operation that settles messages.

    Args:
        asked_in: The spans in which a program asked for it, if it is done later, in the background.
    """
    if not is_on():
        yield
        return
    by_id = {context.span_id: context for context in asked_in}
    links = [trace.Link(context) for context in by_id.values()][:MOST_LINKS]
    attributes = _attributes(operation, "settle", queue, count)
    with _span(operation, trace.SpanKind.CLIENT, links, attributes):
        yield


def current() -> trace.SpanContext | None:
    """Return the context of the program's own span, if there is one that is recorded."""
    if not is_on():
        return None
    span = trace.get_current_span()
    return span.get_span_context() if span.is_recording() else None


def failed(kind: type[CassieqError]) -> None:
    """Mark the current span as failed, where no error is raised."""
    if not is_on():
        return
    span = trace.get_current_span()
    span.set_attribute("error.type", kind.code)
    span.set_status(trace.Status(trace.StatusCode.ERROR, kind.code))


# --- what a message carries -----------------------------------------------------------------------


def with_context(
    headers: Mapping[str, str], context: Mapping[str, str], *, tag: str | None
) -> Mapping[str, str]:
    """Return the headers with a context, unless they have one or would become too large."""
    if not context or PARENT in headers:
        return headers
    found = {**context, **headers}
    size = len((tag or "").encode()) + sum(
        len(name.encode()) + len(text.encode()) for name, text in found.items()
    )
    return found if size <= MAX_EXTRA_BYTES else headers


# --- requests -------------------------------------------------------------------------------------


class Request:
    """The span of a request to a gateway, if spans are on."""

    def __init__(self, span: trace.Span | None) -> None:
        self._span = span

    def end(self, *, api: str, operation: str, status: int, code: str | None) -> None:
        """End the span with its name and outcome; status 0 means that the client has gone."""
        span = self._span
        if span is None or not span.is_recording():
            return
        span.update_name(f"{api} {operation}")
        span.set_attribute("cassieq.api", api)
        span.set_attribute("cassieq.operation", operation)
        if status:
            span.set_attribute("http.response.status_code", status)
        if code is not None:
            span.set_attribute("error.type", code)
        if status >= _SERVER_FAULT:
            span.set_status(trace.Status(trace.StatusCode.ERROR))


@contextmanager
def request(method: str, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[Request]:
    """Open a span around a request, as a child of its caller's if its headers name one."""
    if not is_on():
        yield Request(None)
        return
    texts = {name.decode("latin-1"): text.decode("latin-1") for name, text in headers}
    with _tracer().start_as_current_span(
        method,
        context=_extracted(texts),
        kind=trace.SpanKind.SERVER,
        attributes={"http.request.method": method},
    ) as span:
        yield Request(span)


# --- parts ----------------------------------------------------------------------------------------


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


@functools.lru_cache(maxsize=4)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer("cassieq_spark")


@contextmanager
def _span(
    operation: str, kind: trace.SpanKind, links: list[trace.Link], attributes: dict[str, Any]
) -> Iterator[trace.Span]:
    """Open a span around the block; record the code of an error that ends it."""
    name = f"{operation} {attributes['messaging.destination.name']}"
    with _tracer().start_as_current_span(
        name, kind=kind, links=links, attributes=attributes
    ) as span:
        try:
            yield span
        except CassieqError as error:
            span.set_attribute("error.type", error.code)
            raise


def _attributes(operation: str, kind: str, queue: str, count: int) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.batch.message_count": count,
    }


def _end_receive(
    queue: str, began_us: int, found: Sequence[_Received], error: CassieqError | None
) -> None:
    attributes = _attributes("get", "receive", queue, len(found))
    if len(found) == 1:
        attributes["messaging.message.id"] = found[0].message_id
    span = _tracer().start_span(
        f"get {queue}",
        kind=trace.SpanKind.CLIENT,
        links=_links([one.headers for one in found]),
        attributes=attributes,
        start_time=began_us * 1_000,
    )
    if error is not None:
        span.set_attribute("error.type", error.code)
        span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, error.code))
    span.end()


def _carrier(span: trace.Span) -> Mapping[str, str]:
    """Return the context of a span as headers; none if it is not recorded."""
    if not span.is_recording():
        return {}
    found: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(found, trace.set_span_in_context(span))
    return found


def _extracted(headers: Mapping[str, str]) -> Context:
    return tracecontext.TraceContextTextMapPropagator().extract(dict(headers))


def _links(headers: Sequence[Mapping[str, str]]) -> list[trace.Link]:
    """Link to the distinct contexts that messages carry, at most as many as a span may link to."""
    found: dict[str, trace.SpanContext] = {}
    for one in headers:
        text = one.get(PARENT)
        if text is not None and text not in found and len(found) < MOST_LINKS:
            found[text] = trace.get_current_span(_extracted(one)).get_span_context()
    return [trace.Link(context) for context in found.values() if context.is_valid]
