"""Alerts and dashboard ask for what a gateway really exports, and alerts say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cassieq_spark import metrics
from cassieq_spark.metrics import Counter
from cassieq_spark.model.bucket import Status
from cassieq_spark.server.operations import ACTIONS, OPERATIONS
from tests.fixtures.commands import CommandLine
from tests.fixtures.metrics import Scrape, scrape_until
from tests.server.conftest import Gateway

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "conf" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "conf" / "grafana" / "cassieq.json"
PAGE = ROOT / "docs" / "operations" / "metrics.md"

OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus gives to everything it scrapes."""

WORDS = {
    "absent", "and", "by", "changes", "histogram_quantile", "increase", "label_replace", "max",
    "max_over_time", "min", "min_over_time", "offset", "on", "or", "rate", "resets", "sum", "time",
    "unless",
}  # fmt: skip
SELECTOR = re.compile(r"\b(cassieq_\w+|up)\b(\{[^}]*\})?(\[[^\]]+\])?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
COMMAND = re.compile(r"`cassieq ([a-z]+(?: [a-z]+)*)((?: --[a-z-]+)*)")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def expressions() -> Iterator[Any]:
    for rule in alerts():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in panels():
        for target in panel.get("targets", []):
            name = f"{panel['title']}-{panel['id']}-{target['refId']}"
            yield pytest.param(target["expr"], id=name)


@cache
def declared() -> dict[str, set[str]]:
    """The labels of each family that the code declares, by the name in Prometheus."""
    found: dict[str, set[str]] = {}
    for counter in metrics.every_counter():
        labels = set() if isinstance(counter, Counter) else {counter.label}
        found[metrics.PREFIX + counter.name] = labels
    for family in (*metrics.OF_QUEUES, *metrics.OF_SCANS, *metrics.OF_PASSES, *metrics.OF_GATEWAYS):
        found[family.exported] = set(family.labels)
    return found


def sample_names() -> dict[str, set[str]]:
    """The labels of each sample, by its name: a histogram has samples of three names."""
    found = dict(declared())
    for family in metrics.OF_GATEWAYS:
        if family.kind == "histogram":
            labels = found.pop(family.exported)
            found[f"{family.exported}_bucket"] = labels | {"le"}
            found[f"{family.exported}_count"] = found[f"{family.exported}_sum"] = labels
    return found


@pytest.fixture(scope="module")
def scraped(gateway: Gateway, rest: httpx.Client) -> Scrape:
    """A gateway that leads, and has had requests and errors at both doors."""
    assert 201 == rest.put("/queues/watched").status_code
    rest.post("/queues/watched/messages", content=b"one")
    rest.get("/queues/no-such-queue")
    rest.post("/queues/watched/ack", json={"receipts": ["no receipt"]})
    gateway.ask("POST", "/", headers={"X-Amz-Target": "AmazonSQS.NoSuchAction"})
    found = scrape_until(
        f"{gateway.url}/metrics", "cassieq_queue_messages", queue="watched", state="visible"
    )
    assert 204 == rest.delete("/queues/watched").status_code
    return found


def test_a_gateway_exports_what_is_declared_and_nothing_else(scraped: Scrape) -> None:
    exported = {
        one.name: one
        for one in scraped.families
        # The library adds when each of its own counters was created.
        if one.name.startswith(metrics.PREFIX) and not one.name.endswith("_created")
    }
    assert {name.removesuffix("_total") for name in declared()} == exported.keys()
    for family in (*metrics.OF_QUEUES, *metrics.OF_SCANS, *metrics.OF_PASSES, *metrics.OF_GATEWAYS):
        assert family.kind == exported[family.exported.removesuffix("_total")].type
        assert family.meaning == exported[family.exported.removesuffix("_total")].documentation
    samples = [sample for one in exported.values() for sample in one.samples]
    known = sample_names()
    for sample in samples:
        assert known[sample.name] == sample.labels.keys(), sample
    # What needs a slow or broken Cassandra, or passes of repair, is not there; all else has been
    # seen as it is.
    unseen = known.keys() - {sample.name for sample in samples}
    assert unseen <= {
        "cassieq_http_refused_total", "cassieq_leases_lost_total",
        "cassieq_messages_acked_total", "cassieq_messages_cancelled_total",
        "cassieq_messages_claimed_total", "cassieq_messages_duplicate_total",
        "cassieq_messages_expired_total",
        "cassieq_messages_prepared_total", "cassieq_node_clock_wrong_total",
        "cassieq_messages_redelivered_total", "cassieq_repair_last_pass_timestamp_seconds",
        "cassieq_repair_problems", "cassieq_schedule_misfires_total", "cassieq_verify_findings",
    }  # fmt: skip


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_asks_for_what_is_exported(expression: str, scraped: Scrape) -> None:
    expression = expression.replace("$__rate_interval", "5m")
    known, used = sample_names(), set[str]()
    families = {one.name for one in scraped.families}
    selectors = SELECTOR.findall(expression)
    assert selectors
    for name, matchers, _ in selectors:
        if name == "up":  # Prometheus makes it, of whatever it scrapes
            assert {"job"} == {label for label, _ in MATCHER.findall(matchers)}
            continue
        assert name in known, f"nothing is named {name}"
        stem = re.sub(r"_(total|bucket|count|sum)$", "", name)
        assert {name, stem} & families, f"{name} is not in the scrape"
        for label, text in MATCHER.findall(matchers):
            assert label in known[name], f"{name} has no label {label}"
            check_texts(name, label, text)
        used |= known[name]
    made = set(re.findall(r'label_replace\(.*,\s*"(\w+)",\s*"\$1"', expression))
    for grouping in GROUPING.findall(expression):
        labels = {one.strip() for one in grouping.split(",")}
        assert labels <= used | made | OF_PROMETHEUS, f"{labels} of {expression}"
    rest = GROUPING.sub("", SELECTOR.sub("", re.sub(r'"[^"]*"', "", expression)))
    assert set(re.findall(r"\b[a-z_]\w*", rest)) <= WORDS
    assert expression.count("(") == expression.count(")")


def check_texts(name: str, label: str, text: str) -> None:
    """A misspelt state would match nothing, for ever."""
    known = {
        "state": {"visible", "in_flight", "delayed", "scheduled", "dead"},
        "outcome": {"counted", "unanswered"},
        "operation": {one.name for one in OPERATIONS} | ACTIONS.keys(),
    }
    if name == "cassieq_queue_buckets":
        known["status"] = {"open", *Status}
    if label in known:
        assert set(text.split("|")) <= known[label], text


def test_every_state_is_exported(scraped: Scrape) -> None:
    shown = scraped.samples("cassieq_queue_messages", queue="watched")
    states = {"visible", "in_flight", "delayed", "scheduled", "dead"}
    assert states == {dict(key)["state"] for key in shown}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert {"alert", "expr", "for", "labels", "annotations"} == rule.keys()
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    summary, what_to_do = (rule["annotations"][key] for key in ("summary", "what_to_do"))
    assert summary.endswith(".")
    assert len(what_to_do) > 60
    shown = set(re.findall(r"\$labels\.(\w+)", summary + what_to_do))
    groupings = [one.split(",") for one in GROUPING.findall(rule["expr"])]
    left = {label.strip() for one in groupings for label in one} | OF_PROMETHEUS
    assert shown <= left, "the label is summed away"
    assert f"| `{rule['alert']}` |" in PAGE.read_text("utf-8")
    for words, flags in COMMAND.findall(what_to_do):
        ended = CommandLine("127.0.0.1:1")(*words.split(), "--help")
        assert 0 == ended.code, f"cassieq {words}"
        assert all(flag in ended.out for flag in flags.split())


def test_the_page_names_no_alert_that_does_not_exist() -> None:
    named = re.findall(r"`(Cassieq[A-Za-z]+)`", PAGE.read_text("utf-8"))
    in_text = re.findall(r"see (Cassieq[A-Za-z]+)", ALERTS.read_text("utf-8"))
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert {*named, *in_text} <= set(names)


def test_the_page_asks_for_what_exists() -> None:
    blocks = PAGE.read_text("utf-8").split("```")[1::2]
    queries = [block for block in blocks if block.startswith("\n")]
    asked = {name for query in queries for name, _, _ in SELECTOR.findall(query)}
    assert len(asked) > 3
    assert asked <= sample_names().keys()


def test_the_dashboard_can_be_loaded_and_its_panels_do_not_overlap() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating"} <= board.keys()
    by_name = {one["name"]: one for one in board["templating"]["list"]}
    assert {"datasource", "queue"} == by_name.keys()
    (query,) = re.findall(r"label_values\((\w+), (\w+)\)", by_name["queue"]["query"])
    assert query[1] in sample_names()[query[0]]
    assert len(panels()) == len({panel["id"] for panel in panels()})
    seen: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & seen, panel["title"]
        seen |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert all(target["legendFormat"] for target in panel["targets"])
