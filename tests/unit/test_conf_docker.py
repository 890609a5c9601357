"""The files of conf/docker and conf/kubernetes are what their readers take, and agree."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cassieq_spark.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCKER, KUBERNETES = ROOT / "conf" / "docker", ROOT / "conf" / "kubernetes"
CRONJOB = ROOT / "conf" / "repair" / "cronjob.yaml"
MANIFESTS = [*sorted(KUBERNETES.glob("[!k]*.yaml")), CRONJOB]
IMAGE = "cassieq:0.1"
SUBMIT = ["spark-submit", "--master", "local[2]"]


def check(program: str, *arguments: str | Path) -> None:
    """A linter of the environment is content."""
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return found


def pods() -> list[dict[str, Any]]:
    found = []
    for path in MANIFESTS:
        for one in yaml.safe_load_all(path.read_text("utf-8")):
            if one["kind"] in {"Deployment", "CronJob"}:
                spec = one["spec"].get("jobTemplate", one)["spec"]
                found.append(spec["template"]["spec"])
    return found


def commands() -> list[list[str]]:
    """Of every container that runs our image."""
    found = [service["command"] for service in compose()["services"].values() if "build" in service]
    for pod in pods():
        for container in pod["containers"]:
            assert IMAGE == container["image"]
            found.append([*container["command"], *container["args"]])
    return found


def test_hadolint_takes_the_dockerfile() -> None:
    check("hadolint", DOCKER / "Dockerfile")


def test_the_compose_file_is_as_its_schema_says() -> None:
    check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


def test_a_compose_file_with_a_misspelt_key_is_not(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    wrong = tmp_path / "compose.yaml"
    text = (DOCKER / "compose.yaml").read_text("utf-8")
    wrong.write_text(text.replace("depends_on:", "dependson:"), encoding="utf-8")
    with pytest.raises(AssertionError, match="dependson"):
        check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", wrong)


def test_kubernetes_takes_the_manifests() -> None:
    assert 4 == len(MANIFESTS)
    check("kubernetes-validate", "--strict", *MANIFESTS)


def test_a_manifest_with_a_misspelt_field_is_refused(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    wrong = tmp_path / "gateway.yaml"
    text = (KUBERNETES / "gateway.yaml").read_text("utf-8")
    wrong.write_text(text.replace("readinessProbe", "readynessProbe"), encoding="utf-8")
    with pytest.raises(AssertionError, match="readynessProbe"):
        check("kubernetes-validate", "--strict", wrong)


def test_the_kustomization_names_every_manifest_and_the_image() -> None:
    found = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))
    own = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}

    assert own == set(found["resources"])
    (image,) = found["images"]
    assert IMAGE == f"{image['name']}:{image['newTag']}"


def test_every_command_is_one_that_the_image_takes() -> None:
    """Parsed by the jobs and by the shell themselves."""
    seen = set()
    for command in commands():
        if command[0] == "spark-submit":
            job = Path(command[3])
            assert [*SUBMIT, f"/opt/cassieq/jobs/{job.name}"] == command[:4]
            of_job = runpy.run_path(str(ROOT / "cassieq_spark" / "jobs" / job.name))
            of_job["parser"]().parse_args(command[4:])
            seen.add(job.stem)
        else:
            assert "cassieq" == command[0]
            typer.main.get_command(app).commands[command[1]].make_context(  # type: ignore[attr-defined]  # a group
                command[1], command[2:]
            )
            seen.add(command[1])

    assert {"bootstrap", "repair", "serve", "to_files"} == seen


def test_the_image_is_made_by_the_script_that_a_test_runs() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text("utf-8")
    (run,) = re.findall(r"^RUN (.*(?:\\\n.*)*)", dockerfile, re.MULTILINE)
    copied = set(re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE))

    assert "/src/install.sh /opt/cassieq /src" in run
    assert not re.search(r"\b(pip|apt-get|apt|curl|wget)\b", run)
    assert all((ROOT / name).exists() for names in copied for name in names.split())
    services = compose()["services"].values()
    assert {IMAGE, "cassandra:5.0"} == {service["image"] for service in services}
    assert f"-t {IMAGE} ." in dockerfile
