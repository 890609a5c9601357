"""The manifests of conf/kubernetes: a cluster takes them, also one that holds "restricted"."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.conf import IMAGE, check
from tests.fixtures.pod_security import violations

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "conf" / "kubernetes"
MANIFESTS = sorted(KUBERNETES.glob("[!k]*.yaml"))
SPARK_APPLICATION = ROOT / "conf" / "repair" / "scheduled-spark-application.yaml"
OTHER_IMAGE = "quay.io/prometheus/node-exporter:v1.9.1"
METRICS = {"name": "metrics", "persistentVolumeClaim": {"claimName": "cassieq-metrics"}}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for one in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.name, one


def templates() -> dict[str, dict[str, Any]]:
    """The template of each pod, by file, kind and name."""
    found = {}
    for file, one in documents():
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", one).get("spec", {}).get("template")
        if template is not None:
            found[f"{file} {one['kind']} {one['metadata']['name']}"] = template
    return found


TEMPLATES = templates()


def of_the_operator() -> dict[str, dict[str, Any]]:
    """Pods as the Spark operator makes them."""
    application = yaml.safe_load(SPARK_APPLICATION.read_text("utf-8"))["spec"]["template"]
    found = {}
    for part in ("driver", "executor"):
        given = application[part]
        found[part] = {
            "securityContext": given["podSecurityContext"],
            "volumes": application["volumes"],
            "containers": [{"name": part, **given}],
        }
    return found


PODS = {name: template["spec"] for name, template in TEMPLATES.items()} | of_the_operator()


def test_kubernetes_takes_the_manifests() -> None:
    check("kubernetes-validate", "--strict", *MANIFESTS)


def test_every_kind_of_pod_is_looked_at() -> None:
    kinds = {name.split()[1] for name in TEMPLATES}
    assert {"Deployment", "CronJob", "Job"} == kinds
    with_pods = {"containers:" in path.read_text("utf-8") and path.name for path in MANIFESTS}
    assert with_pods - {False} == {name.split()[0] for name in TEMPLATES}


@pytest.mark.parametrize("name", PODS)
def test_a_namespace_that_enforces_restricted_takes_every_pod(name: str) -> None:
    assert [] == violations(PODS[name])


GATEWAY = PODS["gateway.yaml Deployment cassieq-gateway"]


def test_a_pod_that_says_nothing_is_refused_by_four_fields() -> None:
    """So was the CronJob of earlier releases."""
    assert [
        "a: runAsNonRoot",
        "a: seccompProfile",
        "a: allowPrivilegeEscalation",
        "a: capabilities.drop",
    ] == violations({"containers": [{"name": "a"}]})


@pytest.mark.parametrize("name", PODS)
def test_no_pod_writes_into_its_image_and_each_has_a_limit(name: str) -> None:
    pod = PODS[name]
    places = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounted.keys() <= places
        assert "memory" in container.get("resources", {}).get("limits", container)


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_pod_has_a_token_and_our_own_have_the_image_user(name: str) -> None:
    template = TEMPLATES[name]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert {10001} == {
        pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")
    }
    assert "cassieq" == template["metadata"]["labels"]["app.kubernetes.io/part-of"]
    if container["image"] == OTHER_IMAGE:
        return
    assert IMAGE == container["image"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert "/tmp" == mounts["tmp"]  # noqa: S108 - in the pod
    assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
    # Where config.yaml says that the CA is.
    config = (KUBERNETES / "config.yaml").read_text("utf-8")
    assert f"CASSIEQ_SSL_CA_FILE: {mounts['cassandra-tls']}/ca.crt" in config


def test_whoever_writes_metrics_is_where_their_volume_is() -> None:
    writers = {}
    for name, pod in PODS.items():
        (container,) = pod["containers"]
        arguments = container.get("args", [])
        if METRICS in pod["volumes"] and container.get("image") == IMAGE:
            rule = pod["affinity"]["podAffinity"]
            (term,) = rule["requiredDuringSchedulingIgnoredDuringExecution"]
            assert {"app": "cassieq-textfile"} == term["labelSelector"]["matchLabels"]
            writers[name.split()[-1]] = arguments[arguments.index("--metrics-file") + 1]
        else:
            assert "--metrics-file" not in arguments
    assert {
        "cassieq-repair": "/metrics/cassieq_repair.prom",
        "cassieq-verify": "/metrics/cassieq_verify.prom",
    } == writers


def test_policies_close_every_pod_and_open_the_ports_that_are_there() -> None:
    policies = [one["spec"] for _, one in documents() if one["kind"] == "NetworkPolicy"]
    whole, gateway = policies
    assert {"app.kubernetes.io/part-of": "cassieq"} == whole["podSelector"]["matchLabels"]
    assert ["Ingress", "Egress"] == whole["policyTypes"]
    (gateway_pod,) = [
        one for one in TEMPLATES.values() if one["metadata"]["labels"]["app"] == "cassieq-gateway"
    ]
    assert (
        gateway["podSelector"]["matchLabels"].items() <= gateway_pod["metadata"]["labels"].items()
    )
    (container,) = gateway_pod["spec"]["containers"]
    ports = {one["name"] for one in container["ports"]}
    opened = {
        port["port"] for spec in policies for rule in spec["ingress"] for port in rule["ports"]
    }
    assert ports == opened
    for rule in (one for spec in policies for one in spec["ingress"]):
        assert rule["from"], "from everywhere"
    assert {53, 9042} == {port["port"] for rule in whole["egress"] for port in rule["ports"]}


def test_a_gateway_has_time_to_leave() -> None:
    (container,) = GATEWAY["containers"]
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert "sleep" == sleep
    assert GATEWAY["terminationGracePeriodSeconds"] >= int(seconds) + 10


def test_the_kustomization_names_every_manifest_and_the_images() -> None:
    found = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))

    # cronjob.yaml is for those who want no process that stays.
    assert {path.name for path in MANIFESTS} - {"cronjob.yaml"} == set(found["resources"])
    assert {IMAGE, OTHER_IMAGE} == {f"{one['name']}:{one['newTag']}" for one in found["images"]}
    (namespace,) = [one for _, one in documents() if one["kind"] == "Namespace"]
    assert found["namespace"] == namespace["metadata"]["name"]
    assert "restricted" == namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kubectl_makes_one_set_of_all_manifests() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    made = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] != "Namespace"]
    assert {"cassieq"} == {one["metadata"]["namespace"] for one in made}
    passes = {one["metadata"]["name"] for one in made if one["kind"] in {"CronJob", "Job"}}
    assert {"cassieq-bootstrap", "cassieq-repair-full", "cassieq-verify"} == passes
    assert "registry.example.com/cassieq:0.1" in done.stdout


def test_prometheus_scrapes_every_port_for_metrics_and_under_a_name_that_the_alerts_know() -> None:
    prometheus = ROOT / "conf" / "prometheus"
    (job,) = yaml.safe_load((prometheus / "kubernetes.yml").read_text("utf-8"))["scrape_configs"]
    monitor = yaml.safe_load((prometheus / "podmonitor.yaml").read_text("utf-8"))
    scraped = {
        template["metadata"]["labels"]["app"]
        for template in TEMPLATES.values()
        for container in template["spec"]["containers"]
        for port in container.get("ports", [])
        if port["name"] == "metrics"
    }
    assert {"cassieq-gateway", "cassieq-textfile"} == scraped
    kept = [one["regex"] for one in job["relabel_configs"] if one.get("action") == "keep"]
    assert ["cassieq", "metrics"] == kept
    assert "cassieq" == job["job_name"]
    assert {"app.kubernetes.io/part-of": "cassieq"} == monitor["spec"]["selector"]["matchLabels"]
    assert "app" == monitor["spec"]["jobLabel"]
    assert [{"port": "metrics"}] == monitor["spec"]["podMetricsEndpoints"]
