"""Of messages that were put together each request is told what became of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cassieq_spark.errors import PutAmbiguous
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.server.batches import Outgoing, check_any, put


class Fails:
    """A backend whose put is cut off behind some of its messages."""

    def __init__(self, stored: tuple[str, ...], unknown: tuple[str, ...]) -> None:
        self._error = PutAmbiguous("cut off", message_ids=unknown, stored=stored)

    async def on_queue(self, _queue: str, _work: Callable[[Any], Any]) -> Any:
        raise self._error


def told(backend: Fails, *ids: str) -> list[PutResult | Exception]:
    messages = [Outgoing(body=b"m", headers={}, message_id=one) for one in ids]
    return asyncio.run(put(backend, "q", messages))  # type: ignore[arg-type]  # as one


def test_what_was_stored_is_told_and_what_is_unknown_is_not() -> None:
    first, second, third = told(Fails(("a",), ("b",)), "a", "b", "c")

    assert PutResult("a") == first
    assert isinstance(second, PutAmbiguous)
    assert isinstance(third, PutAmbiguous)
    assert ("b",) == second.message_ids


@pytest.mark.parametrize(("stored", "is_told"), [(("a",), False), (("a", "a"), True)])
def test_of_messages_with_one_id_none_is_called_stored_unless_all_are(
    stored: tuple[str, ...], is_told: bool
) -> None:
    """Their senders have chosen it: nobody can say which of them it is."""
    answers = told(Fails(stored, ()), "a", "a")

    assert [is_told, is_told] == [isinstance(one, PutResult) for one in answers]


def test_a_request_of_which_nothing_is_known_names_all_of_its_messages() -> None:
    """Messages that differ are put side by side, and each part has an error of its own."""
    parts = [PutAmbiguous("cut off", message_ids=ids) for ids in (("a", "b"), ("c",))]

    with pytest.raises(PutAmbiguous) as raised:
        check_any([parts[0], parts[1], parts[0]])

    assert ("a", "b", "c") == raised.value.message_ids


def test_what_has_befallen_some_is_no_error_of_the_request() -> None:
    stored = PutResult("a")

    check_any([stored, PutAmbiguous("cut off", message_ids=("b",))])
    check_any([PutAmbiguous("cut off", message_ids=("b",)), ValueError()])
