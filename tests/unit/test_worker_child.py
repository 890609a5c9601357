"""The process that calls a worker's function: a real one, given messages as a worker gives them."""

from __future__ import annotations

import asyncio
import json
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
import asyncio, logging, os, threading
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

def logs(message):
    logging.getLogger("shop").info("sold %s", message.body.decode())
    if message.body == b"bad":
        raise ValueError("no")

async def logs_later(message):
    await asyncio.sleep(0.01)
    logs(message)

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


async def started(
    name: str, log: Path | None = None, concurrency: int = 1, form: str = "text"
) -> Process:
    """A child whose standard error is the log: it inherits what this process has just then."""
    own = os.dup(2)
    if log is not None:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
    try:
        return await Process.start(name, concurrency, "INFO", form)
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
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    begins = (
        rf"{moment} WARNING cassieq_spark.worker: message {given.message_id} failed\nTraceback "
    )
    assert re.match(begins, said)
    assert "ValueError: xxx" in said
    assert "characters are left out ...\nxxx" in said
    assert len(said) < 17_000


@pytest.mark.parametrize(
    ("function", "concurrency"), [("logs", 1), ("logs_later", 1), ("logs_later", 2)]
)
def test_each_line_of_a_log_of_json_has_the_id_of_its_message(
    log: Path, function: str, concurrency: int
) -> None:
    given = [message(b"one"), message(b"bad")]

    async def ask() -> None:
        process = await started(f"child_module:{function}", log, concurrency, "json")
        for answer in [(await process.call(one))[1] for one in given]:
            await answer
        await process.end()

    asyncio.run(ask())

    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    ids = [one.message_id for one in given]
    expected = [
        ("INFO", "shop", "sold one", ids[0], False),
        ("INFO", "shop", "sold bad", ids[1], False),
        ("WARNING", "cassieq_spark.worker", f"message {ids[1]} failed", ids[1], True),
    ]
    names = ("level", "logger", "message", "message_id")
    assert expected == [(*(line[name] for name in names), "traceback" in line) for line in lines]
    assert lines[2]["traceback"].endswith("ValueError: no")


def test_a_module_that_sets_up_logging_has_the_id_in_its_own_form(
    log: Path, tmp_path: Path
) -> None:
    own = "logging.basicConfig(format='%(message_id)s|%(message)s', level=logging.INFO)"
    (tmp_path / "child_own.py").write_text(f"{MODULE}\n{own}\n", encoding="utf-8")
    given = message(b"one")

    async def ask() -> None:
        process = await started("child_own:logs", log)
        await (await process.call(given))[1]
        await process.end()

    asyncio.run(ask())

    assert f"{given.message_id}|sold one\n" == log.read_text(encoding="utf-8")


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
        await process.kill()
        return [*found, await (await process.call(message(b"late")))[1]]

    assert [-9] * 4 == [one.exit_code for one in asyncio.run(ask())]


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
