"""A spelled plan is the same run each time, and those that were found still miss their rules."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.ablations import ABLATIONS
from tests.simulation.guided import FOUND, named, table
from tests.simulation.run import run
from tests.simulation.spots import SPELLED, Spot, spelled

MISSED = (
    "P6: What is gone is never put again: it may have been delivered.",
    "U13: An entry is settled, and only then its age counts.",
    "lanes: The highest class is asked first.",
)

STALL = "stall after reserve 1 of client 1 for 12.0 s"


@pytest.mark.parametrize("action", SPELLED)
def test_a_spot_is_read_as_it_is_named(action: str) -> None:
    spot = Spot("update_bucket", action, 12.0, client="client 2", number=7)
    assert spot == spelled(spot.name)


def test_what_is_no_spot_is_refused() -> None:
    with pytest.raises(ValueError, match="is not like"):
        spelled("stall after update_bucket for 12.0 s")


def test_a_spelled_spot_befalls_one_statement_of_one_client() -> None:
    def sent(**given: Any) -> list[tuple[Any, ...]]:
        trace: list[tuple[Any, ...]] = []
        run(5, trace=trace, **given)
        return trace

    plain, stalled = sent(), sent(spots=[STALL])
    assert stalled == sent(spots=[STALL])
    (at,) = (
        n
        for n, (one, other) in enumerate(zip(plain, stalled, strict=False))
        if one != other and plain[:n] == stalled[:n]
    )
    before = [(who, name) for _, who, name, _ in plain[:at]]
    assert 1 == before.count(("client 1", "reserve"))
    assert plain == sent(spots=[STALL], without=[STALL])


def test_the_page_shows_what_was_found() -> None:
    """Else: write what ``python -m tests.simulation.guided --table`` prints between the markers."""
    page = (FOUND.parents[2] / "docs/design/simulation.md").read_text("utf-8")
    assert f"<!-- found:begin -->\n{table()}\n<!-- found:end -->" in page


def test_plans_that_were_found_still_miss_their_rules() -> None:
    """Else: ``python -m tests.simulation.guided MARK`` looks for another one."""
    rules = [named(one) for one in ABLATIONS]
    numbers = [str(rules.index(one)) for one in MISSED]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.guided", "--again", *numbers],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (0, len(MISSED)) == (done.returncode, len(done.stdout.splitlines())), done.stdout
