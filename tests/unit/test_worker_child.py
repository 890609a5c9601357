"""The process that calls a worker's function: a real one, given messages as a worker gives them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.queue.handling import Failure
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.child import Answer
from cassieq_spark.worker.process import Process
from tests.unit.test_annotations import DELIVERY

MODULE = """
import asyncio, os, threading
class Mute(Exception):
    def __str__(self):
        raise SystemExit(7)

async def wait(message):
    await asyncio.sleep(3_600 if message.body == b"for ever" else 0.01)

def leave(message):
    if message.body == b"leave":
        if os.fork() == 0:
            os.setsid()
            threading.Event().wait(20)  # another group: it keeps the connection open
            os._exit(0)
    else:
        os._exit(7)

def call(message):
    if message.body == b"mute":
        raise Mute
    if message.body == b"long":
        raise ValueError("x" * 15_000_000)
"""


def message(body: bytes) -> Delivery:
    return replace(DELIVERY, message_id=str(new_uuid()), body=body)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def started(name: str, log: Path | None = None, concurrency: int = 1) -> Process:
    """A child whose standard error is the log: it inherits what this process has just then."""
    own = os.dup(2)
    if log is not None:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
    try:
        return await Process.start(name, concurrency)
    finally:
        os.dup2(own, 2)
        os.close(own)


def answers(log: Path, *given: Delivery, concurrency: int = 1) -> list[Answer]:
    """What a child answers to each of these messages, one after the other."""

    async def ask() -> list[Answer]:
        process = await started("child_module:call", log, concurrency)
        assert Answer(number=0) == await process.found
        found = [await (await process.call(one))[1] for one in given]
        await process.end()
        return found

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "child_broken.py").write_text(f"{MODULE}\nraise Mute", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_an_error_whose_own_text_fails_is_an_error_of_one_message(log: Path) -> None:
    says = "Mute: its text cannot be shown, because its __str__ raises SystemExit"
    assert [
        Answer(number=1, failure=Failure(error=says)),
        Answer(number=2),
    ] == answers(log, message(b"mute"), message(b"fine"))
    assert "in call" in log.read_text(encoding="utf-8")


def test_the_log_of_a_failure_has_its_time_its_message_and_a_bounded_length(log: Path) -> None:
    given = message(b"long")

    (answer,) = answers(log, given)

    assert answer.failure is not None
    assert 500 == len(answer.failure.error)
    said = log.read_text(encoding="utf-8")
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    assert re.match(rf"{moment} message {given.message_id} failed: Traceback ", said)
    assert "ValueError: xxx" in said
    assert "characters are left out ...\nxxx" in said
    assert len(said) < 17_000


@pytest.mark.parametrize(
    ("name", "concurrency", "says"),
    [
        (
            "child_broken:call",
            1,
            "module 'child_broken' of 'child_broken:call' cannot be imported: Mute",
        ),
        ("child_module:call", 2, "'child_module:call' is no async def, and --async has several"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_by_name(
    log: Path, name: str, concurrency: int, says: str
) -> None:
    async def ask() -> Answer:
        process = await started(name, log, concurrency)
        found = await process.found
        await process.kill()
        return found

    assert says in str(asyncio.run(ask()).refused)


def test_a_call_is_cancelled_and_the_others_of_the_process_go_on(log: Path) -> None:
    async def ask() -> list[Answer]:
        process = await started("child_module:wait", log, 2)
        assert Answer(number=0) == await process.found
        number, first = await process.call(message(b"for ever"))
        _, second = await process.call(message(b"short"))
        found = [await second]
        await process.cancel(number)
        found.append(await first)
        await process.end()
        return found

    assert [
        Answer(number=2),
        Answer(number=1, failure=Failure(error="CancelledError: ")),
    ] == asyncio.run(ask())


def test_a_process_that_is_killed_has_answered_all_its_calls(log: Path) -> None:
    async def ask() -> list[Answer]:
        process = await started("child_module:wait", log, 3)
        calls = [(await process.call(message(b"for ever")))[1] for _ in range(3)]
        await process.found
        os.kill(process._child.pid, signal.SIGKILL)
        found = [await one for one in calls]
        assert not process.is_alive
        late = (await process.call(message(b"late")))[1]
        await process.kill()
        assert not late.done()  # whoever asks `is_alive` first sends nothing
        return found

    assert [-9] * 3 == [one.exit_code for one in asyncio.run(ask())]


def test_what_it_has_answered_before_its_end_is_heard_though_others_hold_the_connection(
    log: Path,
) -> None:
    async def ask() -> list[Answer]:
        process = await started("child_module:leave", log)
        await process.found
        found = await (await process.call(message(b"leave")))[1]
        _, second = await process.call(message(b"die"))
        return [found, await second]

    found, died = asyncio.run(ask())
    assert Answer(number=1) == found
    assert 7 == died.exit_code
