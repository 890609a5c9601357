"""Events: names that stay, fields that a handler can read, one line per record."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.log import EVENTS, event, get_logger
from tests.fixtures.sources import events


@pytest.fixture(autouse=True)
def _everything_is_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="cassieq_spark")


def only(caplog: pytest.LogCaptureFixture) -> Any:
    (record,) = caplog.records
    return record


def test_a_record_has_name_and_fields_as_text_and_as_attributes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event(get_logger("queue"), "queue_created", queue="orders", bucket=7)

    record = only(caplog)
    assert "queue_created queue=orders bucket=7" == record.getMessage()
    assert "queue_created" == record.event
    assert {"queue": "orders", "bucket": 7} == record.fields
    assert ("cassieq_spark.queue", logging.INFO) == (record.name, record.levelno)


def test_an_event_without_fields_is_its_name(caplog: pytest.LogCaptureFixture) -> None:
    event(get_logger("queue"), "queue_created")

    assert "queue_created" == only(caplog).getMessage()


def test_a_field_may_have_any_name(caplog: pytest.LogCaptureFixture) -> None:
    event(get_logger("queue"), "queue_created", name="a", logger="b")

    assert "queue_created name=a logger=b" == only(caplog).getMessage()


def test_an_unknown_event_is_refused_also_where_nobody_listens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="cassieq_spark")

    with pytest.raises(KeyError, match="queue_made"):
        event(get_logger("queue"), "queue_made")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (None, "None"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("first\nWARNING forged", r'"first\nWARNING forged"'),
        ("first\u2028second", r'"first\u2028second"'),
    ],
)
def test_a_value_can_make_neither_a_second_field_nor_a_second_line(
    caplog: pytest.LogCaptureFixture, value: object, text: str
) -> None:
    event(get_logger("queue"), "queue_created", queue=value)

    assert f"queue_created queue={text}" == only(caplog).getMessage()
    assert {"queue": value} == only(caplog).fields


def test_the_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    here = inspect.currentframe()
    assert here is not None
    event(get_logger("queue"), "queue_created")
    line = here.f_lineno - 1

    record = only(caplog)
    assert (__file__, line) == (record.pathname, record.lineno)


def test_what_nobody_listens_to_is_not_made_into_text(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("was asked for its text")

    logger = get_logger("queue")
    with caplog.at_level(logging.WARNING, logger=logger.name):
        event(logger, "queue_created", queue=Costly())

    assert [] == caplog.records


@pytest.mark.parametrize("name", EVENTS)
def test_names_are_snake_case_and_meanings_are_sentences(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", name)
    assert re.fullmatch(r"[A-Z].+\.", EVENTS[name].meaning)
    assert EVENTS[name].level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def test_events_are_listed_by_level_and_name() -> None:
    assert sorted(EVENTS, key=lambda name: (EVENTS[name].level, name)) == list(EVENTS)


def test_every_event_of_the_table_is_logged_somewhere_and_no_other() -> None:
    assert sorted(EVENTS) == sorted({one.name for one in events()})


def test_loggers_are_named_by_layer() -> None:
    assert "cassieq_spark.repair" == get_logger("repair").name
