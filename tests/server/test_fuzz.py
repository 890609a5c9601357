"""The fuzzer for a few seconds: it runs, does what it is for, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassieq_spark.testing import EmbeddedCassandra
from tests.fuzz.book import Book
from tests.fuzz.run import PARTS, fuzz
from tests.fuzz.stage import Stage

SECONDS = 4.0


# A long one has bodies of a megabyte, and pytest makes errors of warnings.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_a_short_attack_finds_nothing(cassandra: EmbeddedCassandra, tmp_path: Path) -> None:
    book = Book(tmp_path)

    with Stage(cassandra.contact_points, "cassieq_fuzz", book, SECONDS) as stage:
        fuzz(stage, 20_261_128)

    # Not how long a callback takes: other tests have the machine, too.
    assert {} == {what: n for what, n in book.findings.items() if not what.startswith("stall")}
    done = {name.split()[0] for name in book.counts}
    assert {*PARTS, "good"} <= done
    assert all(book.figures[f"{name}: loop"]["callbacks"] for name in ("accounts", "open"))
    assert book.figures["ledger 0"]["sent"] == book.figures["ledger 0"]["deleted"] > 0
