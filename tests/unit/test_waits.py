"""The design's table of times says what the code does."""

from __future__ import annotations

import re

from cassieq_spark.queue.get import claim, open_buckets, queue_reader, reader
from tests.ablations import ROOT

PAGE = ROOT / "docs/design/get-and-leases.md"


def test_the_times_that_a_visible_message_may_wait_are_those_of_the_design() -> None:
    rows = re.findall(r"^\| `([A-Z_]+_S)` \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    code = {
        name: value
        for module in (claim, open_buckets, queue_reader, reader)
        for name, value in vars(module).items()
        if name in dict(rows)
    }
    assert {name: float(value) for name, value in rows} == code


def test_a_reader_seals_at_most_half_as_often_as_one_row_takes_reservations() -> None:
    """One row takes some 400 CASes a second [R10], and a seal makes one producer reserve."""
    assert 1 / open_buckets.YOUNG_PER_OPEN_S <= 400 / 2
    assert open_buckets.SHORT_LINGER_S <= claim.GRACE_S <= claim.PATIENT_GRACE_S
