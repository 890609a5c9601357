"""The manifests of conf/keda: workers that a cluster takes, scaled by figures that are exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cassieq_spark import metrics
from cassieq_spark.cli.app import app
from cassieq_spark.metrics import Family
from tests.fixtures.conf import IMAGE, check
from tests.fixtures.pod_security import violations
from tests.server.test_alerts import PROMTOOL, promtool

KEDA = Path(__file__).resolve().parents[2] / "conf" / "keda"
WORKER = KEDA / "worker.yaml"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def the_container() -> dict[str, Any]:
    (deployment,) = documents(WORKER)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_kubernetes_takes_the_workers_also_where_it_enforces_restricted() -> None:
    check("kubernetes-validate", "--strict", WORKER)
    (deployment,) = documents(WORKER)
    assert [] == violations(deployment["spec"]["template"]["spec"])
    assert "replicas" not in deployment["spec"], "it would undo KEDA's number at each apply"


def test_the_command_of_a_worker_is_one_and_its_probes_are_answered_there() -> None:
    container = the_container()
    assert (IMAGE, ["cassieq", "worker"]) == (container["image"], container["command"])
    command = typer.main.get_command(app)
    worker = command.get_command(None, "worker")  # type: ignore[attr-defined]
    with worker.make_context("worker", list(container["args"])) as context:
        given = context.params
    (port,) = container["ports"]
    assert f"0.0.0.0:{port['containerPort']}" == given["health"]
    paths = [container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert ["/healthz", "/readyz"] == paths


def test_scalers_name_the_workers_their_queue_and_metrics_that_are_exported() -> None:
    by_prometheus, by_sqs, key = documents(KEDA / "scaledobject.yaml")
    (deployment,) = documents(WORKER)
    queue = the_container()["args"][1]
    for one in (by_prometheus, by_sqs):
        assert {"name": deployment["metadata"]["name"]} == one["spec"]["scaleTargetRef"]

    (trigger,) = by_prometheus["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    exported = {
        family.exported: family for family in vars(metrics).values() if isinstance(family, Family)
    }
    used = re.findall(r"(cassieq_\w+)\{([^}]*)\}", query)
    assert 3 == len(used)
    for name, labels in used:
        assert {label.partition("=")[0] for label in labels.split(",")} <= {*exported[name].labels}
        assert f'queue="{queue}"' in labels

    (trigger,) = by_sqs["spec"]["triggers"]
    assert trigger["metadata"]["queueURL"].endswith(f"/{queue}")
    assert key["metadata"]["name"] == trigger["authenticationRef"]["name"]


@pytest.mark.skipif(PROMTOOL is None, reason="`make promtool` installs it")
def test_the_query_of_the_scaler_counts_what_may_be_got(tmp_path: Path) -> None:
    """Prometheus itself computes it: with nothing paused, with one priority paused, with all."""
    (trigger,) = documents(KEDA / "scaledobject.yaml")[0]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    tests = []
    for paused, found in ((("0", "0"), 47), (("0", "1"), 7), (("1", "1"), 5)):
        series = [
            ('cassieq_queue_visible_messages{queue="mail",priority="0"}', "2"),
            ('cassieq_queue_visible_messages{queue="mail",priority="1"}', "40"),
            ('cassieq_queue_paused{queue="mail",priority="0"}', paused[0]),
            ('cassieq_queue_paused{queue="mail",priority="1"}', paused[1]),
            ('cassieq_queue_messages{queue="mail",state="in_flight"}', "5"),
            ('cassieq_queue_messages{queue="other",state="in_flight"}', "500"),
        ]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": value} for name, value in series],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "0m",
                        "exp_samples": [{"labels": "{}", "value": found}],
                    }
                ],
            }
        )
    path = tmp_path / "query.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}), encoding="utf-8")
    code, said = promtool("test", "rules", path)
    assert 0 == code, said
