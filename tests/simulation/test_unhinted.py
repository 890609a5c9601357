"""Which buckets may lack a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cassandra import OperationTimedOut

from cassieq_spark.model.pointer import HINT_SPARE_S, MINUTE_US
from cassieq_spark.store import statements
from cassieq_spark.store.transport import Page, Request
from tests.simulation.unhinted import Unhinted

if TYPE_CHECKING:
    from cassieq_spark.store.statements import Statement

LANE = UUID(int=1)
PLACE = (LANE, 7)
CAS = (statements.UPDATE_BUCKET, ("columns", *PLACE, "as read"))
HINT = (statements.WRITE_HINT, (LANE, 0, 20, 7, 100))
LOST = OperationTimedOut("the answer was lost")


def send(listener: Unhinted, sent: tuple[Statement, Any], *answers: Any, who: str = "c") -> None:
    told: list[Any] = []
    request = Request(statement=sent[0], rows=[sent[1]], timeout_s=1.0)
    note = listener.listens(who, request, told.append)
    for answer in answers:
        note(answer)
    assert [*answers] == told


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([(HINT, Page([])), (CAS, Page([]))], set()),
        ([(HINT, Page([])), (CAS,)], {PLACE}),  # it died
        ([(CAS, LOST)], {PLACE}),
        ([(CAS, LOST), (CAS, Page([]))], set()),  # it was sent again
        ([(CAS, Page([])), (HINT,)], {PLACE}),  # the CAS came late
        ([(HINT,)], set()),  # no CAS comes
    ],
)
def test_a_client_that_is_not_answered_may_leave_no_hint(
    steps: list[Any], wanted: set[Any]
) -> None:
    listener = Unhinted()
    for step in steps:
        send(listener, *step)
    assert wanted == listener.places(0)


def test_a_hint_lasts_for_two_days() -> None:
    listener = Unhinted()
    send(listener, HINT, Page([]))
    end_us = 21 * MINUTE_US + HINT_SPARE_S * 1_000_000
    assert set() == listener.places(end_us - 1)
    assert {PLACE} == listener.places(end_us)
