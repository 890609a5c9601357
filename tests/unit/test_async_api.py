"""The asyncio API is the synchronous one, call by call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.connecting import connect, connect_async
from cassieq_spark.errors import UsageError

PAIRS = [
    (cassieq.Client, cassieq.AsyncClient),
    (cassieq.Queue, cassieq.AsyncQueue),
    (cassieq.Consumer, cassieq.AsyncConsumer),
]

#: Of the rooms above the client, not of the API.
INSIDE = {"store"}

#: It runs coroutines of the program; `cassieq worker` has processes for functions that block.
OF_ASYNCIO = {"work"}

#: Awaited in another way, or not at all: it only makes an object.
NOT_COROUTINES = {("AsyncQueue", "consumer"), ("AsyncQueue", "process"), ("AsyncClient", "browse")}

#: What is written anew, as the synchronous text says what is another here.
OWN_TEXT = {"close"}

RENAMED = {
    "Queue": "AsyncQueue",
    "Consumer": "AsyncConsumer",
    "AbstractContextManager[object]": "AbstractAsyncContextManager[object]",
    "Iterator[Message]": "AsyncIterator[Message]",
    "tuple[Queue, bool]": "tuple[AsyncQueue, bool]",
}


def public(kind: type) -> dict[str, Any]:
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name: inspect.getattr_static(kind, name) for name in names}


def calls() -> list[Any]:
    return [
        pytest.param(synchronous, other, name, id=f"{synchronous.__name__}.{name}")
        for synchronous, other in PAIRS
        for name in public(synchronous)
        if name not in INSIDE
    ]


@pytest.mark.parametrize(("synchronous", "other", "name"), calls())
def test_each_call_is_there_with_the_same_arguments_result_and_text(
    synchronous: type, other: type, name: str
) -> None:
    was, found = public(synchronous)[name], public(other)[name]

    if isinstance(was, property):
        assert isinstance(found, property)
        return
    if (other.__name__, name) not in NOT_COROUTINES:
        # A wrapped one is a coroutine function itself; inspect looks at the one inside.
        assert inspect.iscoroutinefunction(found)
    before, now = inspect.signature(was), inspect.signature(found)
    assert list(before.parameters.values()) == list(now.parameters.values())
    result = str(before.return_annotation)
    assert RENAMED.get(result, result) == now.return_annotation
    if name not in OWN_TEXT:
        assert inspect.getdoc(was) == inspect.getdoc(found)
    assert inspect.getdoc(found)


@pytest.mark.parametrize(("synchronous", "other"), PAIRS)
def test_there_is_no_call_that_the_synchronous_api_has_not(synchronous: type, other: type) -> None:
    assert public(other).keys() - OF_ASYNCIO == public(synchronous).keys() - INSIDE


def test_it_connects_with_the_same_arguments() -> None:
    before, now = inspect.signature(connect).parameters, inspect.signature(connect_async).parameters
    assert [*before] == [*now]
    with pytest.raises(UsageError, match="kespace"):
        connect_async("127.0.0.1", kespace="cassieq")  # type: ignore[call-arg]  # misspelt


def test_outside_its_block_it_says_how_it_is_used() -> None:
    client = connect_async("127.0.0.1")
    with pytest.raises(UsageError, match=r"async with cassieq\.connect_async"):
        _ = client.keyspace
