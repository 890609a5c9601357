"""The sentences that say which queue is ahead follow from the figures, whoever wins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures import scripts

measured_queues = scripts.load("measured_queues")

FSYNC = "each put is fsynced before it returns"
OURS = {"title": "ours", "version": "1", "durability": FSYNC}


def run(**rates: tuple[float, float]) -> dict[str, Any]:
    """Rates of ``ours`` and of a peer at two loads."""
    cells = {
        f"96 B, {processes}, by 100": {
            "put": {
                side: {"median": each[at], "min": each[at], "max": each[at]}
                for side, each in rates.items()
            },
            "get and ack": {},
            "samples": {},
        }
        for at, processes in enumerate(("1 process", "4 processes"))
    }
    return {
        "sides": {"ours": OURS, "peer": OURS | {"title": "Peer"}},
        "rates": cells,
        "skipped": {"rabbitmq": "RabbitMQ is not installed"},
        "failures": {"96 B, 1 process, by 100": {"peer": "2 went in: 1 did not come out"}},
        "rounds": 5,
        "machine": {"cores": 2},
        "runs": {"rates": {"command": "python -m bench.against_queues", "date": "2026-11-24"}},
    }


@pytest.mark.parametrize(
    ("ours", "says", "range_"),
    [
        ((30.0, 20.0), "Ours is ahead of Peer at every load of *put, by 100*.", "2.00 to 3.00"),
        ((5.0, 1.0), "Peer is ahead of ours at every load of *put, by 100*.", "0.10 to 0.50"),
        (
            (20.0, 5.0),
            "Between ours and Peer it depends on size and processes for *put, by 100*.",
            "0.50 to 2.00",
        ),
    ],
)
def test_who_is_ahead_is_said_of_whoever_is(
    ours: tuple[float, float], says: str, range_: str
) -> None:
    page = measured_queues.queues_page(run(ours=ours, peer=(10.0, 10.0)))
    assert f"- {says}\n" in page
    assert f"| Peer | put, by 100 | {range_} |" in page


def test_what_was_skipped_and_what_failed_is_told() -> None:
    page = measured_queues.queues_page(run(ours=(1.0, 1.0), peer=(1.0, 1.0)))
    assert "- rabbitmq: RabbitMQ is not installed\n" in page
    assert "- Peer at 96 B, 1 process, by 100: 2 went in: 1 did not come out\n" in page
