"""A `Worker`: which function gets a message, and what its rule makes of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import FunctionInvalid, OptionInvalid, UsageError
from cassieq_spark.queue.handling import Failure
from tests.unit.test_annotations import DELIVERY


def message(tag: str | None = "order", deliveries: int = 1) -> cassieq.Delivery:
    return replace(DELIVERY, tag=tag, delivery_count=deliveries)


def outcome(worker: cassieq.Worker, given: cassieq.Delivery) -> object:
    """What the function returns, or what is said of its error."""
    try:
        returned: Any = worker(given)
        if isinstance(returned, Awaitable):

            async def awaited() -> object:
                return await returned

            return asyncio.run(awaited())
    except Exception as error:  # noqa: BLE001 - whatever it raises is looked at
        return Failure.of(error)
    return returned


@pytest.fixture
def worker() -> cassieq.Worker:
    return cassieq.Worker()


def test_a_message_goes_to_the_function_of_its_tag_or_to_the_one_for_all_others(
    worker: cassieq.Worker,
) -> None:
    worker.on(tag="order")(lambda _: "the order's")

    @worker.on(tag="later")
    async def later(message: cassieq.Delivery) -> str:
        await asyncio.sleep(0)
        return f"{message.tag}'s"

    assert "the order's" == outcome(worker, message("order"))
    assert "later's" == outcome(worker, message("later"))
    says = "LookupError: the worker has no function for tag 'mail'. Add @worker.on(...)"
    for tag in ("mail", None):
        failed = outcome(worker, message(tag))
        assert isinstance(failed, Failure)
        assert failed.error.startswith(says.replace("'mail'", repr(tag)))
        assert Failure(error=failed.error) == failed  # it comes again, and its deliveries count

    worker.on()(lambda _: "all others'")
    assert ["all others'"] * 2 == [outcome(worker, message(tag)) for tag in ("mail", None)]
    assert "the order's" == outcome(worker, message("order"))


RULES: list[tuple[dict[str, Any], Exception, int, Failure]] = [
    ({}, ValueError("x"), 9, Failure(error="ValueError: x")),
    (
        {"give_up_on": (LookupError, ValueError)},
        ValueError("x\ny"),
        1,
        Failure(error="ValueError: x\ny", dies_of="ValueError: x y"),
    ),
    ({"give_up_on": (ValueError,)}, KeyError("x"), 1, Failure(error="KeyError: 'x'")),
    ({"retries": 2}, ValueError("x"), 2, Failure(error="ValueError: x")),
    (
        {"retries": 2},
        ValueError("x"),
        3,
        Failure(error="ValueError: x", dies_of="after 3 deliveries: ValueError: x"),
    ),
    (
        {"retries": 0},
        ValueError("x" * 600),
        1,
        Failure(
            error=f"ValueError: {'x' * 488}",
            dies_of=f"after 1 deliveries: ValueError: {'x' * 168}",
        ),
    ),
    (
        {"backoff": cassieq.Backoff(base_s=10, jitter=0)},
        ValueError("x"),
        3,
        Failure(error="ValueError: x", after_s=40.0),
    ),
    (
        {"retries": 1, "give_up_on": (Exception,), "backoff": cassieq.Backoff(base_s=10)},
        cassieq.Retry(after=5, counted=False),
        9,
        Failure(error="Retry: retry after 5 s", after_s=5.0, is_counted=False, is_asked=True),
    ),
    (
        {"backoff": cassieq.Backoff(base_s=10, jitter=0)},
        cassieq.Retry(),
        2,
        Failure(error="Retry: retry after 20 s", after_s=20.0, is_asked=True),
    ),
    (
        {"retries": 1},
        cassieq.Retry(after=5),
        2,
        Failure(
            error="Reject: after 2 deliveries: Retry: retry after 5 s",
            dies_of="after 2 deliveries: Retry: retry after 5 s",
            is_asked=True,
        ),
    ),
    (
        {"retries": 0, "backoff": cassieq.Backoff()},
        cassieq.Reject("old"),
        1,
        Failure(error="Reject: old", dies_of="old", is_asked=True),
    ),
]


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_rule_of_a_function_says_what_becomes_of_its_error(
    worker: cassieq.Worker, case: tuple[dict[str, Any], Exception, int, Failure], is_async: bool
) -> None:
    rule, error, deliveries, says = case

    def fail(_: cassieq.Delivery) -> None:
        raise error

    async def fail_later(message: cassieq.Delivery) -> None:
        await asyncio.sleep(0)
        fail(message)

    worker.on(**rule)(fail_later if is_async else fail)

    assert says == outcome(worker, message(deliveries=deliveries))


def test_middleware_runs_around_the_function_and_sees_its_error(worker: cassieq.Worker) -> None:
    seen: list[object] = []

    def layer(name: str) -> Any:
        def around(_: cassieq.Delivery) -> Iterator[None]:
            seen.append(f"{name} before")
            try:
                yield
                seen.append(f"{name} after")
            except ValueError as error:
                seen.append(f"{name} failed: {error}")
                raise

        return around

    worker.around(layer("outer"))
    worker.around(layer("inner"))

    @worker.on(give_up_on=(ValueError,))
    def work(message: cassieq.Delivery) -> None:
        seen.append("function")
        if message.tag == "bad":
            raise ValueError("no")

    assert None is outcome(worker, message("good"))
    assert ["outer before", "inner before", "function", "inner after", "outer after"] == seen
    seen.clear()
    failed = outcome(worker, message("bad"))
    assert isinstance(failed, Failure)
    assert "ValueError: no" == failed.dies_of
    assert [
        *("outer before", "inner before", "function"),
        *("inner failed: no", "outer failed: no"),
    ] == seen


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_middleware_is_an_error_of_the_function(
    worker: cassieq.Worker, when: str
) -> None:
    @worker.around
    def around(_: cassieq.Delivery) -> Iterator[None]:
        if when == "before":
            raise KeyError(when)
        yield
        raise KeyError(when)

    worker.on(give_up_on=(KeyError,))(lambda _: None)

    says = f"KeyError: '{when}'"
    assert Failure(error=says, dies_of=says) == outcome(worker, message())


def test_middleware_that_catches_an_error_ends_the_message_as_done(
    worker: cassieq.Worker,
) -> None:
    @worker.around
    def around(_: cassieq.Delivery) -> Iterator[None]:
        with suppress(ValueError):
            yield

    @worker.on()
    def fail(_: cassieq.Delivery) -> None:
        raise ValueError

    assert None is outcome(worker, message())


def test_what_cannot_be_used_is_refused_where_it_is_written(worker: cassieq.Worker) -> None:
    def two(_: cassieq.Delivery, other: object) -> None: ...

    def plain(_: cassieq.Delivery) -> Iterator[None]:
        return iter(())

    worker.on(tag="order")(print)
    with pytest.raises(UsageError, match="a function for tag 'order' already"):
        worker.on(tag="order")(print)
    with pytest.raises(FunctionInvalid, match=r"two' cannot be called with one message"):
        worker.on(tag="two")(two)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="retries is -1"):
        worker.on(retries=-1)
    with pytest.raises(UsageError, match="is no generator function"):
        worker.around(plain)
