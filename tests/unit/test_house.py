"""The house stays small and names things in one way: what every file of the package keeps to."""

from __future__ import annotations

from tests.fixtures.sources import PACKAGE, events

LIMIT_LINES = 600


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text("utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }

    assert len(lengths) > 50
    assert {} == {name: lines for name, lines in lengths.items() if lines > LIMIT_LINES}


def test_no_event_names_a_bucket_without_its_lane() -> None:
    """Each lane counts its buckets from 0: `Lane.as_fields` says which is meant."""
    assert [] == [one.place for one in events() if "bucket" in one.fields]
