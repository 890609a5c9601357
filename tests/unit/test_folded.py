"""One line a second of an outage: the rest is counted, and other events are never left out."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from cassandra import OperationTimedOut

from cassieq_spark.log import get_logger
from cassieq_spark.store import retries
from cassieq_spark.store.retries import OF_DRIVER, Folded, fold
from cassieq_spark.store.statements import Kind, Statement

POOL = "cassandra.pool"
RECONNECT = "Error attempting to reconnect to %s: %s"


def record(at_s: float, *args: object, text: str = RECONNECT, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord(POOL, logging.WARNING, "", 0, text, args, None)
    made.created = at_s
    vars(made).update(fields)
    return made


def shown(*records: logging.LogRecord) -> list[str]:
    folded = Folded()
    return [one.getMessage() for one in records if folded.filter(one)]


def test_of_the_same_words_one_a_second_passes_and_says_how_many_did_not() -> None:
    many = [record(at / 10, "node", at) for at in range(25)]
    assert [
        "Error attempting to reconnect to node: 0",
        "Error attempting to reconnect to node: 10 left_out=9",
        "Error attempting to reconnect to node: 20 left_out=9",
    ] == shown(*many)


def test_other_words_and_other_levels_are_not_counted_with_them() -> None:
    worse = record(0.2, "node", 3)
    worse.levelno = logging.ERROR
    told = shown(record(0, "node", 1), record(0.1, "node", text="Host %s has been marked down"),
                 worse, record(0.3, "node", 4), record(1, "node", 5))  # fmt: skip
    assert [
        "Error attempting to reconnect to node: 1",
        "Host node has been marked down",
        "Error attempting to reconnect to node: 3",
        "Error attempting to reconnect to node: 5 left_out=1",
    ] == told


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    assert 2 == len(shown(record(9_000, "node", 1), record(100, "node", 2)))


def test_our_other_events_and_what_is_below_a_warning_always_pass() -> None:
    wrong = [record(0, "node", at, event="node_clock_wrong") for at in range(3)]
    low = [record(0, "node", at) for at in range(3)]
    for one in low:
        one.levelno = logging.INFO
    assert 6 == len(shown(*wrong, *low))


def test_a_statement_that_is_sent_again_has_the_count_among_its_fields(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassieq_spark.store.retries._folded", Folded())
    loggers = [get_logger("store"), *map(logging.getLogger, OF_DRIVER)]
    for logger in loggers:
        monkeypatch.setattr(logger, "filters", [])
    fold()
    fold()
    assert [1, 1, 1, 1] == [len(one.filters) for one in loggers]
    statement = Statement(name="read_queue", cql="", kind=Kind.READ)
    now_s = iter([1e6, 1e6 + 0.5, 1e6 + 1])
    make = logging.getLogRecordFactory()

    def timed(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        made.created = next(now_s)
        return made

    monkeypatch.setattr(logging, "_logRecordFactory", timed)
    for sent in (1, 2, 3):
        retries.tell(statement, OperationTimedOut(), sent=sent, pause_s=0.1, left_s=9)

    first, last = caplog.records
    assert (1, 3) == (vars(first)["fields"]["attempt"], vars(last)["fields"]["attempt"])
    assert 1 == vars(last)["fields"]["left_out"]
    assert last.getMessage().endswith(" left_out=1")


def test_at_level_debug_everything_passes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=POOL)
    assert 3 == len(shown(*(record(0, "node", at) for at in range(3))))
