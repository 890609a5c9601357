"""The process that calls a worker's function: a real one, given messages as a worker gives them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import new_uuid
from cassieq_spark.queue.handling import Failure
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.child import Answer
from cassieq_spark.worker.process import Process
from tests.unit.test_annotations import DELIVERY

MODULE = """
class Mute(Exception):
    def __str__(self):
        raise SystemExit(7)

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


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Path) -> Iterator[Process]:
    """A child whose standard error is the log: it inherits what this process has just then."""
    (tmp_path / "child_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        process = Process("child_module:call", SystemClock())
    finally:
        os.dup2(own, 2)
        os.close(own)
    assert Answer() == process.answer(lambda: inf)
    yield process
    process.kill()


def answer_to(process: Process, given: Delivery) -> Answer | None:
    assert process.send(given)
    return process.answer(lambda: inf)


def test_an_error_whose_own_text_fails_is_an_error_of_one_message(
    process: Process, log: Path
) -> None:
    says = "Mute: its text cannot be shown, because its __str__ raises SystemExit"
    assert Answer(failure=Failure(error=says)) == answer_to(process, message(b"mute"))
    assert Answer() == answer_to(process, message(b"fine"))
    assert "in call" in log.read_text(encoding="utf-8")


def test_the_log_of_a_failure_has_its_time_its_message_and_a_bounded_length(
    process: Process, log: Path
) -> None:
    given = message(b"long")

    answer = answer_to(process, given)

    assert answer is not None
    assert answer.failure is not None
    assert 500 == len(answer.failure.error)
    said = log.read_text(encoding="utf-8")
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    assert re.match(rf"{moment} message {given.message_id} failed: Traceback ", said)
    assert "ValueError: xxx" in said
    assert "characters are left out ...\nxxx" in said
    assert len(said) < 17_000


def test_a_module_whose_error_has_no_text_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child_broken.py").write_text(f"{MODULE}\nraise Mute", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = Process("child_broken:call", SystemClock())
    try:
        found = process.answer(lambda: inf)
    finally:
        process.kill()

    assert found is not None
    assert "module 'child_broken' of 'child_broken:call' cannot be imported: Mute" in str(
        found.refused
    )
