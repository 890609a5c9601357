"""What a pass of repair leaves for alerts: in the process, and in a file for node_exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassieq_spark.cli.repair import check_metrics_file, write_metrics
from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.metrics import NODE_CLOCKS_WRONG, OF_PASSES
from cassieq_spark.repair import outcome
from cassieq_spark.repair.report import Finding, QueueRepair, RepairReport, VerifyReport
from cassieq_spark.store.node_clocks import warn_of

FOUND = Finding(queue="orders", kind="row_corrupt", bucket=7, what="it cannot be read")


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "_last", {family: {} for family in OF_PASSES})


def test_a_process_that_shall_repair_says_so_before_its_first_pass() -> None:
    assert "" == outcome.as_text()
    outcome.expect(outcome.REPAIR)
    assert 'cassieq_repair_last_pass_timestamp_seconds{work="repair"} 0\n' in outcome.as_text()


def test_a_new_start_of_repairing_does_not_hide_the_last_pass() -> None:
    outcome.note(RepairReport(), 5_000_000)
    outcome.expect(outcome.REPAIR)
    assert 'seconds{work="repair"} 5.0\n' in outcome.as_text()


def test_the_file_tells_of_problems_and_findings(tmp_path: Path) -> None:
    file = tmp_path / "cassieq.prom"
    write_metrics(str(file), VerifyReport(findings=[FOUND], problems=["a", "b"]))

    lines = file.read_text("utf-8").splitlines()
    assert 'cassieq_repair_problems{work="verify"} 2' in lines
    assert "cassieq_verify_findings{} 1" in lines
    assert "# TYPE cassieq_verify_findings gauge" in lines
    assert [file] == list(tmp_path.iterdir())


def test_problems_end_with_the_pass_that_has_none() -> None:
    outcome.note(RepairReport(queues=[QueueRepair(queue="orders", problems=["no"])]), 1)
    assert 'cassieq_repair_problems{work="repair"} 1\n' in outcome.as_text()
    outcome.note(RepairReport(), 2)
    assert 'cassieq_repair_problems{work="repair"} 0\n' in outcome.as_text()


def test_a_pass_over_one_queue_is_no_pass_over_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="passes over all queues"):
        check_metrics_file(str(tmp_path / "x.prom"), is_whole=False)
    with pytest.raises(OptionInvalid, match=r"--metrics-file .* cannot be written"):
        check_metrics_file(str(tmp_path / "no" / "x.prom"), is_whole=True)


def test_a_wrong_clock_is_counted_by_node() -> None:
    before = NODE_CLOCKS_WRONG.values.get("10.0.0.9", 0)
    warn_of({"10.0.0.9": 2.5})
    assert before + 1 == NODE_CLOCKS_WRONG.values["10.0.0.9"]
