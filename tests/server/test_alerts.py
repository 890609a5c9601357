"""Prometheus' own tool reads the alerts and the dashboard, and plays the unit tests of alerts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.server.test_watching_files import ALERTS, alerts, panels

UNIT_TESTS = ALERTS.with_name("alerts_test.yml")
BESIDE = Path(sys.executable).with_name("promtool")
"""Where `make promtool` puts it."""
PROMTOOL = shutil.which("promtool") or shutil.which(str(BESIDE))

pytestmark = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not installed (package prometheus): nobody tries the alerts out. "
    "Run: make promtool",
)

TWO_QUEUES = """
- {series: 'cassieq_queue_messages{queue="one", state="visible"}', values: '1x9'}
- {series: 'cassieq_queue_messages{queue="letters", state="visible"}', values: '1x9'}
- {series: 'cassieq_queue_info{queue="one", dead_letter_queue="letters"}', values: '1x9'}
- {series: 'cassieq_queue_info{queue="two", dead_letter_queue="letters"}', values: '1x9'}
"""


def promtool(*arguments: str | Path) -> tuple[int, str]:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def filled_in(expression: str) -> str:
    """As Grafana asks for it, of all queues."""
    return expression.replace("$__rate_interval", "5m").replace("$queue", ".*")


def test_prometheus_can_load_the_alerts() -> None:
    code, said = promtool("check", "rules", ALERTS)
    assert (0, True) == (code, f"{len(alerts())} rules found" in said), said


def test_prometheus_can_load_what_it_scrapes_in_kubernetes(tmp_path: Path) -> None:
    config = yaml.safe_load(ALERTS.with_name("kubernetes.yml").read_text("utf-8"))
    # The distribution's promtool knows no Kubernetes.
    for job in config["scrape_configs"]:
        (found,) = job.pop("kubernetes_sd_configs")
        assert "pod" == found["role"]
    shutil.copy(ALERTS, tmp_path)
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")

    code, said = promtool("check", "config", tmp_path / "prometheus.yml")

    assert (0, True) == (code, "1 rule files found" in said), said


def test_alerts_fire_when_they_should_and_only_then() -> None:
    code, said = promtool("test", "rules", UNIT_TESTS)
    assert 0 == code, said


def test_every_alert_has_a_unit_test() -> None:
    played = UNIT_TESTS.read_text("utf-8")
    assert [] == [rule["alert"] for rule in alerts() if rule["alert"] not in played]


def test_the_dashboard_can_be_evaluated_when_two_queues_share_their_dead_letters(
    tmp_path: Path,
) -> None:
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    rules = [{"record": f"panel:{at}", "expr": filled_in(expr)} for at, expr in enumerate(asked)]
    tests = {
        "rule_files": ["panels.yml"],
        "tests": [
            {
                "input_series": yaml.safe_load(TWO_QUEUES),
                "promql_expr_test": [{"expr": "up", "eval_time": "5m", "exp_samples": []}],
            }
        ],
    }
    for name, content in (("panels.yml", {"groups": [{"name": "panels", "rules": rules}]}),
                          ("tests.yml", tests)):  # fmt: skip
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")

    code, said = promtool("test", "rules", tmp_path / "tests.yml")

    assert len(rules) > 10
    assert 0 == code, said
