"""Requests made of the REST door's own description: answers are as described, never a 500."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.fuzz.described import CHECKS, KINDS, SCHEMA, called
from tests.fuzz.sqs import drawn
from tests.server.conftest import Gateway

EXAMPLES = 12
"""For each operation: so many requests that fit its description, and so many that do not."""


@pytest.mark.parametrize(
    ("mode", "operation"),
    [pytest.param(mode, one, id=f"{mode.value}-{one.name}") for mode, one in KINDS],
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

    def run(data: st.DataObject) -> None:
        case = data.draw(described.as_strategy(mode))
        rest.post(f"{queue}/messages", content=b"x")
        found = rest.post(f"{queue}/messages/next").json()["messages"]
        called(case, name, [one["receipt"] for one in found], data.draw)
        response = case.call(base_url=gateway.url, timeout=30)
        case.validate_response(response, checks=CHECKS)
        if operation.name == "deleteQueue":
            rest.put(queue)

    drawn(20_261_123, st.data(), EXAMPLES, run)
    for path in (queue, f"/queues/{name[-70:]}-new"):
        for one in rest.get(f"{path}/schedules").json().get("schedules", ()):
            rest.delete(f"{path}/schedules/{one['name']}")
    rest.delete(f"/queues/{name[-70:]}-new")
