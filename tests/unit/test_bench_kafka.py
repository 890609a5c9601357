"""What is made of the samples of the benchmark beside Kafka; the benchmark itself is no test."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("bench", reason="the benchmarks are not in a source distribution")
pytest.importorskip("matplotlib", reason="the extra bench is not installed")
from pathlib import Path

from bench import against_kafka, kafka_report
from bench.kafka_rounds import OURS, SPARK, TARGETS, THEIRS, TRIES, Case, Rounds, Samples
from bench.spark_child import CommandFailed
from tests.fixtures import scripts

page = scripts.load("measured_kafka")
CASE = Case(2_000, 96)


def found(ours: float, theirs: float) -> dict[str, Any]:
    """A run in which each of our legs takes ``ours`` seconds, a tenth more and a tenth less."""
    samples = Samples({leg: {OURS: [], THEIRS: []} for leg in TARGETS}, {})
    for part in (0.9, 1.0, 1.1):
        for leg in ("sink_batch", "sink_stream"):
            samples.add(leg, OURS, {"wall": ours * part})
            samples.add(leg, THEIRS, {"wall": theirs})
        for leg in ("source_limit", "source_all"):
            samples.add(leg, OURS, {"wall": ours * part, "triggers": ours * part, "batches": 10})
            samples.add(leg, THEIRS, {"wall": theirs, "triggers": theirs, "batches": 9})
    queries = ("first_query", "second_query", "first_wall", "second_wall")
    both = {OURS: [ours], THEIRS: [theirs]}
    delays = {OURS: [ours, ours], THEIRS: [theirs, theirs], SPARK: [theirs, theirs]}
    return {
        "cases": {"main": kafka_report.of_case(samples, CASE)},
        "first_row": kafka_report.of_first_rows(dict.fromkeys(queries, both)),
        "trickle": kafka_report.of_trickle(delays),
        "targets": TARGETS,
        "later_targets_s": kafka_report.LATER_TARGETS_S,
        "rounds": 3,
        "machine": {"cores": 2},
        "versions": {"pyspark": "4.3.0", "kafka": "4.1.0", "pyspark_of_kafka": "4.0.0"},
        "command": "python -m bench.against_kafka",
        "date": "2026-11-24",
    }


def test_a_ratio_is_of_one_round_and_above_one_where_we_are_faster() -> None:
    leg = found(1.0, 2.0)["cases"]["main"]["legs"]["sink_batch"]

    assert pytest.approx({"median": 2.0, "min": 2 / 1.1, "max": 2 / 0.9}) == leg["ratio"]
    assert pytest.approx(2_000) == leg["messages_per_s"][OURS]["median"]
    assert pytest.approx(1_000) == leg["messages_per_s"][THEIRS]["median"]


def test_targets_that_are_missed_are_named_and_others_are_not() -> None:
    assert [] == kafka_report.missed(found(1.0, 2.0))
    assert [
        *TARGETS, "first_query", "second_query", "trickle",
    ] == [line.partition(":")[0] for line in kafka_report.missed(found(2.0, 1.0))]  # fmt: skip


class Failing:
    """A session whose writes fail so often."""

    def __init__(self, side: str, times: int) -> None:
        self.side = side
        self.left = times

    def do(self, command: str, **_arguments: Any) -> Any:
        if command == "write" and self.left:
            self.left -= 1
            raise CommandFailed(self.side, "Traceback\nTimeoutException: expired", "its log")
        return CASE.messages if command == "stored" else {"wall": 1.0}


def run_of(ours: int, theirs: int, folder: Path) -> tuple[Rounds, Samples]:
    children: Any = {OURS: Failing(OURS, ours), THEIRS: Failing(THEIRS, theirs)}
    rounds = Rounds(children, against_kafka.SMOKE, folder=folder, seed=1)
    return rounds, rounds._until_done("main-1", CASE, ["sink_batch"])


def test_a_round_in_which_kafka_failed_is_made_again_and_named(tmp_path: Path) -> None:
    rounds, samples = run_of(0, TRIES - 1, tmp_path)
    assert {OURS: [1.0], THEIRS: [1.0]} == samples.seconds["sink_batch"]
    assert ["main-1"] * (TRIES - 1) == rounds.repeated
    assert "main-1" in page.kafka_page(found(1.0, 2.0) | {"repeated": ["main-1"]})


@pytest.mark.parametrize(("ours", "theirs"), [(1, 0), (0, TRIES)])
def test_a_round_that_failed_here_or_always_ends_the_run(
    tmp_path: Path, ours: int, theirs: int
) -> None:
    with pytest.raises(CommandFailed):
        run_of(ours, theirs, tmp_path)
