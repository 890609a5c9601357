"""Large answers are written message by message and in parts, and are the same as if not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cassieq_spark.server.door import PART_BYTES, InParts, as_json, in_slices


@pytest.mark.parametrize(
    "value", [{}, {"a": ["\ud800", "\u00e9", '"', 1, 2.5, None, True, []], "b": {"c": "x" * 10**6}}]
)
def test_json_is_what_it_would_be_in_one_piece(value: Any) -> None:
    assert json.dumps(value).encode() == as_json(value)


def test_slices_are_put_together_again() -> None:
    text = b"a\r" * PART_BYTES
    assert text.replace(b"\r", b"&#13;") == in_slices(
        text, lambda some: some.replace(b"\r", b"&#13;")
    )


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_a_response_is_sent_in_parts(size: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    response = InParts(b"x" * size, status_code=201, media_type="text/plain")
    asyncio.run(response({"type": "http"}, receive, send))
    start, *parts = sent
    assert (201, str(size).encode()) == (start["status"], dict(start["headers"])[b"content-length"])
    assert size == sum(len(one["body"]) for one in parts)
    assert all(len(one["body"]) <= PART_BYTES for one in parts)
    assert [True] * (len(parts) - 1) + [False] == [one.get("more_body", False) for one in parts]
