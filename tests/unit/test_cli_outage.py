"""What a terminal shows of an outage: one line, however many threads try however often."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from cassandra import OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable

from cassieq_spark.cli.logs import OVER_AFTER_S, TerminalHandler
from cassieq_spark.log import event, get_logger
from cassieq_spark.store import retries
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.testing import ManualClock

STATEMENT = Statement(name="read_queue", cql="", kind=Kind.READ)


@pytest.fixture(autouse=True)
def _each_try_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="cassieq_spark.store")


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock()
    handler = TerminalHandler(clock)
    logger = logging.getLogger("cassieq_spark")
    logger.addHandler(handler)
    yield clock
    logger.removeHandler(handler)


def tell(sent: int, error: Exception) -> None:
    retries.tell(STATEMENT, error, sent=sent, pause_s=0.42, left_s=18.3)


def test_thirteen_tries_are_one_line_with_cause_attempt_and_next_try(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    for sent in range(1, 14):
        tell(sent, NoHostAvailable("Unable", {}))
        clock.advance(2)

    assert (
        "Cassandra does not answer: no node can be reached. Attempt 1 failed; next try in 0.4 s, "
        "and so on for up to 18 s\n"
    ) == capsys.readouterr().err


def test_the_next_outage_has_its_line_again(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(1, OperationTimedOut())
    clock.advance(OVER_AFTER_S + 1)
    tell(1, Unavailable("x", required_replicas=2, alive_replicas=1))

    first, second = capsys.readouterr().err.splitlines()
    assert "no answer came in time" in first
    assert "1 of the 2 replicas that are needed are up" in second


@pytest.mark.usefixtures("clock")
def test_other_events_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    tell(1, OperationTimedOut())
    event(get_logger("queue"), "put_unproven", queue="q")
    assert (
        "WARNING cassieq_spark.queue: put_unproven queue=q"
        == (capsys.readouterr().err.splitlines()[1])
    )
