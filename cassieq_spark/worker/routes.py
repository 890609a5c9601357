"""`Worker` has a function for each tag, each with its own rule for errors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from cassieq_spark.entropy import system
from cassieq_spark.errors import FunctionInvalid, UsageError
from cassieq_spark.model.backoff import Backoff
from cassieq_spark.options import arguments
from cassieq_spark.queue.handling import Reject, Retry, reason_of
from cassieq_spark.queue.message import Delivery

Function = Callable[[Delivery], object]
Around = Callable[[Delivery], Iterator[None]]
F = TypeVar("F", bound=Function)
A = TypeVar("A", bound=Around)


class Worker:
    """Functions that work on messages, each on those of one tag.

    ``cassieq worker module:worker QUEUE`` runs it. It is a function of one message itself, so a
    test calls it, and `AsyncQueue.work` takes it.

    A message for whose tag there is no function has failed, as if a function had raised an error:
    it comes again, perhaps to a worker that has one, and dies after ``max_deliveries``.
    """

    def __init__(self) -> None:
        self._routes: dict[str | None, _Route] = {}
        self._around: list[Callable[[Delivery], AbstractContextManager[None]]] = []

    def on(
        self,
        tag: str | None = None,
        *,
        retries: int | None = None,
        backoff: Backoff | None = None,
        give_up_on: tuple[type[Exception], ...] = (),
    ) -> Callable[[F], F]:
        """Return a decorator for the function that works on the messages of a tag.

        Args:
            tag: Default: all messages for whose tag there is no other function.
            retries: How many times a message that has failed is tried again, before it is rejected.
                Default: as the queue's ``max_deliveries`` says. Only errors that the function
                raises are looked at: if its process dies, that setting alone counts.
            backoff: The delays between the tries. Default: those of the worker.
            give_up_on: Errors after which the message is rejected at once.

        Raises:
            OptionInvalid: An argument has a wrong form.
            FunctionInvalid: The function cannot be called with one message.
            UsageError: There is a function for this tag already.
        """
        checked = None if tag is None else arguments.tag(tag)
        if retries is not None:
            arguments.retries(retries)

        def decorate(function: F) -> F:
            if checked in self._routes:
                which = "all other tags" if checked is None else f"tag {checked!r}"
                raise UsageError(f"there is a function for {which} already. Remove one of the two")
            check_function(function, getattr(function, "__qualname__", repr(function)))
            self._routes[checked] = _Route(function, retries, backoff, give_up_on)
            return function

        return decorate

    def around(self, middleware: A) -> A:
        """Run a generator function of one message around each call; a decorator.

        What is before its ``yield`` runs before the function, and what is behind it runs after it.
        An error of the function is raised at the ``yield``: if the middleware catches it, the
        message is done. An error of the middleware is an error of the function. The first one that
        was added is the outermost.

        Raises:
            UsageError: It is no generator function.
        """
        is_generator: bool = inspect.isgeneratorfunction(middleware)
        if not is_generator:
            raise UsageError(f"{middleware!r} is no generator function. Write one yield in it")
        self._around.append(contextmanager(middleware))
        return middleware

    @property
    def is_async(self) -> bool:
        """Whether each function is an ``async def``."""
        return all(route.is_async for route in self._routes.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no function yet."""
        return not self._routes

    def __call__(self, message: Delivery) -> object:
        """Call the function for a message; of an ``async def``, return what is to be awaited.

        Raises:
            LookupError: There is no function for the message's tag.
            Retry, Reject, Exception: What the function raises, or what its rule makes of it.
        """
        route = self._routes.get(message.tag) or self._routes.get(None)
        if route is None:
            raise LookupError(
                f"the worker has no function for tag {message.tag!r}. Add @worker.on(...) for this "
                "tag, or for all others, or run a worker that has one"
            )
        if route.is_async:
            return self._later(route, message)
        with self._block(route, message):
            return route.function(message)

    async def _later(self, route: _Route, message: Delivery) -> object:
        with self._block(route, message):
            returned: Awaitable[object] = route.function(message)
            return await returned

    @contextmanager
    def _block(self, route: _Route, message: Delivery) -> Iterator[None]:
        try:
            with ExitStack() as stack:
                for around in self._around:
                    stack.enter_context(around(message))
                yield
        except Exception as error:
            judged = route.judged(error, message)
            if judged is error:
                raise
            raise judged from (error.__cause__ if isinstance(error, Retry) else error)


@dataclass(frozen=True, slots=True)
class _Route:
    function: Callable[[Delivery], Any]
    retries: int | None
    backoff: Backoff | None
    give_up_on: tuple[type[Exception], ...]

    @property
    def is_async(self) -> bool:
        return awaits(self.function)

    def judged(self, error: Exception, message: Delivery) -> Exception:
        """Return what is raised in the place of an error."""
        count, is_retry = message.delivery_count, isinstance(error, Retry)
        if isinstance(error, Reject):
            return error
        if isinstance(error, self.give_up_on) and not is_retry:
            return Reject(reason_of(error))
        is_counted = not isinstance(error, Retry) or error.is_counted
        if self.retries is not None and is_counted and count > self.retries:
            return Reject(reason_of(error, f"after {count} deliveries: "))
        if self.backoff is None or (isinstance(error, Retry) and error.after_s is not None):
            return error
        return Retry(self.backoff.delay_s(count, system.rng.random()), counted=is_counted)


def awaits(function: Callable[[Any], Any]) -> bool:
    """Whether what a function returns is to be awaited."""
    if isinstance(function, Worker):
        return function.is_async
    call = getattr(function, "__call__", None)  # noqa: B004 - that of an object
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_function(found: object, name: str) -> Callable[[Any], Any]:
    """Return what was found, if it can be called with one message.

    Raises:
        FunctionInvalid: It cannot.
    """
    if isinstance(found, Worker) and found.is_empty:
        raise FunctionInvalid(f"{name!r} is a Worker without functions. Add one by @{name}.on()")
    if not callable(found):
        raise FunctionInvalid(f"{name!r} is {type(found).__name__}, allowed: a function")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise FunctionInvalid(
            f"{name!r} is a generator: calling it runs nothing. Use no yield in it"
        )
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise FunctionInvalid(f"{name!r} cannot be called with one message: {error}") from error
    except ValueError:  # one of C without a signature: the first call will tell
        pass
    return found
