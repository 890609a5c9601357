"""Requests made of the REST door's own description: answers are as described, never a 500."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cassieq_spark.server.rest.models import Nothing
from cassieq_spark.server.rest.openapi import document
from cassieq_spark.server.rest.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from cassieq_spark.server.rest.call import Operation
    from tests.server.conftest import Gateway

EXAMPLES = 12
"""For each operation: so many requests that fit its description, and so many that do not."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

SCHEMA = schemathesis.openapi.from_dict(document())


def examples(seed_: int) -> Callable[[Callable[[st.DataObject], None]], Callable[[], None]]:
    """Run it for `EXAMPLES` drawings, the same each time; found ones are not kept."""

    def decorate(run: Callable[[st.DataObject], None]) -> Callable[[], None]:
        every = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        found: Callable[[], None] = seed(seed_)(every(given(st.data())(run)))
        return found

    return decorate


def called(case: Any, queue: str, receipts: list[str], draw: Any) -> None:
    """Name a queue and a receipt that exist, more often than chance would."""
    found = case.path_parameters or {}
    if "queue" in found:
        others = [] if case.method == "PUT" else [found["queue"]]  # nobody would delete those
        found["queue"] = draw(st.sampled_from([queue, queue, f"{queue[-70:]}-new", *others]))
    if "receipt" in found:
        found["receipt"] = draw(st.sampled_from([*receipts, found["receipt"]]))
    if isinstance(case.body, dict) and isinstance(case.body.get("receipts"), list):
        case.body["receipts"] = [*case.body["receipts"], *receipts]
    query = case.query or {}
    if "wait" in query:
        with suppress(TypeError, ValueError):
            query["wait"] = min(float(query["wait"]), 0.1)


def takes_anything(operation: Operation) -> bool:
    """Whether a request for it can be wrong in any way that the description knows."""
    return "{" in operation.path or operation.query is not Nothing or operation.body is not None


@pytest.mark.parametrize(
    ("mode", "operation"),
    [
        pytest.param(mode, one, id=f"{mode.value}-{one.name}")
        for mode in GenerationMode
        for one in OPERATIONS
        if mode is GenerationMode.POSITIVE or takes_anything(one)
    ],
)
def test_answers_are_as_described(
    gateway: Gateway,
    rest: httpx.Client,
    queue: str,
    operation: Any,
    mode: GenerationMode,
) -> None:
    name = queue.rpartition("/")[2][-80:]
    described = SCHEMA[f"/v1{operation.path}"][operation.method]

    @examples(20_261_123)
    def run(data: st.DataObject) -> None:
        case = data.draw(described.as_strategy(mode))
        rest.post(f"{queue}/messages", content=b"x")
        found = rest.post(f"{queue}/messages/next").json()["messages"]
        called(case, name, [one["receipt"] for one in found], data.draw)
        response = case.call(base_url=gateway.url, timeout=30)
        case.validate_response(response, checks=CHECKS)
        if operation.name == "deleteQueue":
            rest.put(queue)

    run()
    rest.delete(f"/queues/{name[-70:]}-new")
