"""The gateway's own clock: the cluster's time, and nobody's request waits while it is measured."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.server import backend as module
from cassieq_spark.server.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    import cassieq_spark as cassieq


@pytest.fixture
def backend(client: cassieq.Client) -> Iterator[Backend]:
    made = Backend(lambda: client, threads=1)
    made._client = client
    yield made
    made._pool.close()
    made._timing.close()


def test_the_loop_goes_on_while_the_time_is_measured(
    backend: Backend, client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is five round trips, once a minute; all who want it meanwhile get the one answer."""
    may_end, measured = threading.Event(), []
    now_us = client.now_us

    def slow() -> int:
        assert may_end.wait(60)
        measured.append(now_us())
        return measured[-1]

    monkeypatch.setattr(client, "now_us", slow)

    async def ask() -> list[int]:
        both = asyncio.gather(backend.now_us(), backend.now_us())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not both.done()
        may_end.set()
        found = list(await both)
        found.append(await backend.now_us())
        return found

    found = asyncio.run(ask())
    assert 1 == len(measured)
    assert found == sorted(found)
    assert abs(found[-1] - now_us()) < 5_000_000


def test_the_time_is_measured_again_and_an_error_is_not_kept(
    backend: Backend, client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int | StoreUnavailable] = [
        StoreUnavailable("no node answers"),
        10**15,
        2 * 10**15,
    ]

    def next_answer() -> int:
        answer = answers.pop(0)
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    monkeypatch.setattr(client, "now_us", next_answer)
    monkeypatch.setattr(module, "TIME_EVERY_S", 0.0)

    async def ask() -> int:
        with pytest.raises(StoreUnavailable):
            await backend.now_us()
        return await backend.now_us()

    assert 10**15 <= asyncio.run(ask()) < 10**15 + 10**6
