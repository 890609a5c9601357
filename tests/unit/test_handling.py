"""What a function says by raising: how long, counted or not, and why."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.queue.handling import Failure


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("no"), Failure(error="ValueError: no")),
        (cassieq.Retry(), Failure(error="Retry: retry", is_asked=True)),
        (
            cassieq.Retry(after=timedelta(minutes=1), counted=False),
            Failure(error="Retry: retry after 60 s", after_s=60.0, is_counted=False, is_asked=True),
        ),
        (
            cassieq.Reject("old"),
            Failure(error="Reject: old", dies_of="old", is_asked=True),
        ),
        (
            caused(cassieq.Reject("old"), KeyError("id")),
            Failure(error="KeyError: 'id'", dies_of="old"),
        ),
        (
            caused(cassieq.Retry(after=2), KeyError("id")),
            Failure(error="KeyError: 'id'", after_s=2.0),
        ),
        (caused(ValueError("no"), KeyError("id")), Failure(error="ValueError: no")),
    ],
)
def test_an_error_says_what_becomes_of_the_message(error: Exception, says: Failure) -> None:
    assert says == Failure.of(error)
    assert says == pickle.loads(pickle.dumps(says))  # noqa: S301 - our own


@pytest.mark.parametrize("after", [-1, float("nan"), "60", 31 * 86_400])
def test_a_delay_that_no_queue_can_keep_is_refused_where_it_is_raised(after: Any) -> None:
    with pytest.raises(OptionInvalid, match="after is"):
        cassieq.Retry(after=after)


@pytest.mark.parametrize("reason", ["", "x" * 201, "two\nlines"])
def test_a_reason_that_no_row_can_hold_is_refused_where_it_is_raised(reason: str) -> None:
    with pytest.raises(OptionInvalid, match="reason is"):
        cassieq.Reject(reason)
