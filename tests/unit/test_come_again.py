"""The doors say "come again" (`Retry-After`) of errors that `retriable` names, and of no others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cassieq_spark import errors
from cassieq_spark.errors import CassieqError
from cassieq_spark.server.backend import Busy
from cassieq_spark.server.rest import messages
from cassieq_spark.server.rest.door import RestDoor
from cassieq_spark.server.sqs.call import translated
from cassieq_spark.server.sqs.door import SqsDoor

NOTHING = cast("Any", None)
DOORS = {"/v1/queues": RestDoor(NOTHING, NOTHING), "/": SqsDoor(NOTHING, NOTHING)}

NOT_OF_THE_REQUEST = {
    errors.ClientClosed,
    errors.CasAmbiguous,
    errors.CasContention,
    errors.PutAmbiguous,
    errors.ReplicationDiffers,
    errors.SchemaMismatch,
    errors.SchemaMissing,
    errors.StoreTimeout,
    errors.StoreUnavailable,
    errors.CassandraLoginFailed,
    errors.TlsFailed,
}
ALL = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, CassieqError) and "code" in vars(one)
]


def answered(path: str, error: Exception) -> tuple[int, str | None]:
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    answer = DOORS[path].failure(error, scope)
    return answer.status_code, answer.headers.get("retry-after")


@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_whoever_may_come_again_is_told_so(path: str, kind: type[CassieqError]) -> None:
    status, again = answered(path, kind("as it happened"))
    assert (kind in NOT_OF_THE_REQUEST) == (status == 503)
    assert ("1" if kind.retriable else None) == again


@pytest.mark.parametrize("path", DOORS)
def test_whoever_sends_too_much_comes_again(path: str) -> None:
    assert (503, "1") == answered(path, Busy())


@pytest.mark.parametrize("kind", [errors.StoreTimeout, errors.ClientClosed])
def test_an_update_that_the_gateways_end_cuts_off_leaves_those_before_it_their_answers(
    monkeypatch: pytest.MonkeyPatch, kind: type[CassieqError]
) -> None:
    told: list[dict[str, str] | CassieqError] = [{"new_receipt": "r"}, kind("as it happened")]

    async def updated(*_: object) -> dict[str, str]:
        if isinstance(found := told.pop(0), CassieqError):
            raise found
        return found

    monkeypatch.setattr(messages, "_updated", updated)
    update = SimpleNamespace(receipt="mine", body=b"", visibility_timeout=None)
    call = SimpleNamespace(body=SimpleNamespace(updates=[update, update]))
    results = asyncio.run(cast("Any", messages.update).__wrapped__(call, NOTHING))["results"]
    assert ["updated", "unknown"] == [one["verdict"] for one in results]
    assert (kind.code, 503) == (results[1]["problem"]["code"], results[1]["problem"]["status"])


@pytest.mark.parametrize("kind", [errors.StoreTimeout, errors.PutAmbiguous])
def test_an_entry_of_sqs_that_is_the_whole_answer_says_the_same(kind: type[CassieqError]) -> None:
    """A request for one message does what a batch of one does, and its error is an entry's."""
    entry = translated(kind("as it happened"))
    assert entry is not None
    assert (503, "1" if kind.retriable else None) == answered("/", entry)
