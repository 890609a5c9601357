"""Examples on queues in memory: as a reader would test them (docs/guides/testing.md)."""

from __future__ import annotations

import asyncio
import importlib.util
import runpy
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import cassieq_spark as cassieq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType

    from cassieq_spark.testing import MemoryClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_scheduled_messages(
    cassieq_memory: MemoryClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cassieq, "connect", lambda *_, **__: cassieq_memory)
    runpy.run_path(str(EXAMPLES / "scheduled.py"), run_name="__main__")
    assert "cancelled: True\nscheduled: 1\nnow: stand up\n" == capsys.readouterr().out


def test_a_payment_is_charged_when_the_bank_answers(
    cassieq_memory: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    example = module("retry_backoff")
    queue = cassieq_memory.create_queue("payments")
    queue.put(b"12 EUR")
    for _ in range(2):
        (message,) = queue.get()
        with pytest.raises(example.BankIsAway):
            example.charge(message)
        queue.release(message, delay=60)
        assert [] == queue.get()
        cassieq_memory.clock.advance(61)
    (message,) = queue.get()
    example.charge(message)
    queue.ack(message)
    assert capsys.readouterr().out.startswith("charged 12 EUR with key ")


def test_a_producer_in_fastapi(
    cassieq_memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = module("fastapi_producer")

    @asynccontextmanager
    async def connected(*_: Any, **__: Any) -> AsyncIterator[cassieq.AsyncClient]:
        yield cassieq_memory.for_tasks()

    monkeypatch.setattr(example, "connect_async", connected)

    async def use() -> list[httpx.Response]:
        app = example.app
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://orders") as http,
        ):
            order = {"customer": "ada", "amount": 7}
            key = {"Idempotency-Key": "k1"}
            return [
                await http.post("/orders", json=order, headers=key),
                await http.post("/orders", json=order, headers=key),
                await http.post("/orders", json=order),
                await http.post("/orders", json={"customer": "ada"}),
            ]

    first, again, other, wrong = asyncio.run(use())
    assert [202, 202, 202, 422] == [one.status_code for one in (first, again, other, wrong)]
    assert first.json() == again.json() != other.json()
    bodies = [one.body for one in cassieq_memory.queue("api.orders").get(10)]
    assert [b'{"customer":"ada","amount":7}'] * 2 == bodies
