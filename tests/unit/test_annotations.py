"""Public annotations are found at run time: pydantic, FastAPI and editors read them."""

from __future__ import annotations

import asyncio
import inspect
import typing
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

import cassieq_spark as cassieq
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.receipt import Receipt
from tests.fixtures.public import is_alias, offered

PROTOCOLS = {
    f"__{name}__"
    for name in ("init", "enter", "exit", "iter", "aenter", "aexit", "aiter", "anext", "call")
}

MESSAGE = cassieq.Message(
    message_id=str(UUID(int=1)),
    id=1,
    body=b"\xff\x00",
    tag=None,
    headers={"trace": "on"},
    delivery_count=1,
    enqueued_at=datetime(2026, 11, 28, tzinfo=UTC),
    lane=LaneId(UUID(int=1)),
)

RECEIPT = Receipt(lane=MESSAGE.lane, bucket=BucketNo(1), lease_id=UUID(int=2), first=1, last=1)

DELIVERY = cassieq.Delivery(
    **{one.name: getattr(MESSAGE, one.name) for one in fields(MESSAGE)},
    visible_until=datetime(2026, 11, 29, tzinfo=UTC),
    _proof=RECEIPT,
)

INFO = cassieq.QueueInfo(
    name="orders",
    settings=cassieq.QueueSettings.parse(),
    home_datacenter="datacenter1",
    created_at=time_of(1),
    labels={"owner": "billing"},
)


def members(kind: type) -> dict[str, Any]:
    """What a class of ours has of its own, with that of its bases of ours."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        if one.__module__.startswith("cassieq_spark"):
            for name, member in vars(one).items():
                if not name.startswith("_") or name in PROTOCOLS:
                    found.setdefault(name, member)
    return found


def annotated() -> list[Any]:
    found: dict[str, Any] = {}
    for name, public in offered().items():
        if not is_alias(public):
            found[name] = public
        if isinstance(public, type):
            for inner, member in members(public).items():
                plain = member.fget if isinstance(member, property) else member
                plain = getattr(plain, "__func__", plain)  # a classmethod
                if callable(plain):
                    found[f"{name}.{inner}"] = plain
    return [pytest.param(one, id=name) for name, one in found.items()]


@pytest.mark.parametrize("public", annotated())
def test_each_public_annotation_resolves(public: Any) -> None:
    hints = typing.get_type_hints(public)
    if inspect.isfunction(public):
        shown = inspect.signature(public, eval_str=True)
        assert not [one for one in shown.parameters.values() if isinstance(one.annotation, str)]
        assert "return" in hints


@pytest.mark.parametrize("name", ["alter_queue", "create_queue", "label_queue", "queue"])
def test_a_call_of_the_asyncio_client_returns_what_its_signature_says(name: str) -> None:
    shown = inspect.signature(getattr(cassieq.AsyncClient, name), eval_str=True)
    assert cassieq.AsyncQueue is shown.return_annotation


def test_a_web_application_returns_queues_messages_and_its_openapi_document() -> None:
    app = FastAPI()

    @app.get("/queues")
    def _queues() -> list[cassieq.QueueInfo]:
        return [INFO]

    @app.get("/messages")
    def _messages() -> list[cassieq.Message]:
        return [MESSAGE, DELIVERY]

    @app.get("/deliveries")
    def _deliveries() -> list[cassieq.Delivery]:
        return [DELIVERY]

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            paths = "/queues", "/messages", "/deliveries", "/openapi.json"
            return [await http.get(path) for path in paths]

    queues, messages, deliveries, openapi = answers = asyncio.run(ask())

    assert [200] * 4 == [one.status_code for one in answers]
    assert [("orders", {"owner": "billing"})] == [
        (one["name"], one["labels"]) for one in queues.json()
    ]
    shown = [(one["body"], one["headers"]) for one in messages.json()]
    assert [("_wA=", {"trace": "on"})] * 2 == shown
    assert ["2026-11-29T00:00:00Z"] == [one["visible_until"] for one in deliveries.json()]
    assert {"Delivery", "Message", "QueueInfo"} <= openapi.json()["components"]["schemas"].keys()
