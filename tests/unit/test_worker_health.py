"""What a worker answers to the probes of its supervisor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cassieq_spark.errors import CassandraLoginFailed, CassieqError, StoreUnavailable
from cassieq_spark.worker import health
from cassieq_spark.worker.health import probes


def asked(
    path: str, problem: str | None = None, refusal: CassieqError | None = None
) -> tuple[str, str]:
    """Status and text of an answer by a worker whose loop runs."""

    async def ask() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        application = probes(loop, lambda: problem, lambda: refusal)
        return await asyncio.to_thread(answered, application, path)

    return asyncio.run(ask())


def answered(application: Any, path: str) -> tuple[str, str]:
    said: list[str] = []
    body = application({"PATH_INFO": path}, lambda status, _: said.append(status))
    return said[0], b"".join(body).decode()


@pytest.mark.parametrize(
    ("path", "problem", "refusal", "says"),
    [
        ("/healthz", None, None, ("200 OK", "ok\n")),
        ("/healthz", "away", StoreUnavailable("away"), ("200 OK", "ok\n")),
        (
            "/healthz",
            None,
            CassandraLoginFailed("no"),
            ("503 Service Unavailable", "cassandra_login_failed\n"),
        ),
        ("/readyz", None, None, ("200 OK", "ok\n")),
        ("/readyz", "it stops", None, ("503 Service Unavailable", "not ready: it stops\n")),
        ("/", None, None, ("404 Not Found", "ask for /healthz or /readyz\n")),
    ],
)
def test_a_worker_says_whether_it_is_alive_and_whether_it_works(
    path: str, problem: str | None, refusal: CassieqError | None, says: tuple[str, str]
) -> None:
    assert says == asked(path, problem, refusal)


def test_a_worker_whose_loop_does_not_answer_or_is_closed_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "LONGEST_S", 0.1)
    loop = asyncio.new_event_loop()
    application = probes(loop, lambda: None, lambda: None)
    says = ("503 Service Unavailable", "the worker does not answer\n")
    assert says == answered(application, "/healthz")
    loop.close()
    assert says == answered(application, "/healthz")
