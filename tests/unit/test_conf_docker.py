"""The files of conf/docker are what their readers take, and each command is one of the image."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import typer
import yaml

from cassieq_spark.cli.app import app
from tests.fixtures.conf import IMAGE, check
from tests.unit.test_conf_kubernetes import PODS

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "conf" / "docker"
BASES = {"python:3.13-slim-bookworm", "cassandra:5.0"}
SUBMIT = ["spark-submit", "--master", "local[2]"]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return found


def commands() -> list[list[str]]:
    """Of every container that runs our image."""
    found = [
        service["command"]
        for name, service in compose()["services"].items()
        if "build" in service and name != "account"  # a script: a test runs it
    ]
    for pod in PODS.values():
        found += [
            [*one["command"], *one["args"]]
            for one in pod["containers"]
            if one.get("image") == IMAGE
        ]
    return found


def test_hadolint_takes_the_dockerfile() -> None:
    check("hadolint", DOCKER / "Dockerfile")


def test_the_compose_file_is_as_its_schema_says() -> None:
    check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


def test_every_command_is_one_that_the_image_takes() -> None:
    """Parsed by the jobs and by the shell themselves."""
    seen = set()
    for command in commands():
        if command[0] == "spark-submit":
            job = Path(command[3])
            assert [*SUBMIT, f"/opt/cassieq/jobs/{job.name}"] == command[:4]
            of_job = runpy.run_path(str(ROOT / "cassieq_spark" / "jobs" / job.name))
            typer.main.get_command(of_job["job"]).make_context(job.stem, command[4:])
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
    assert f"-t {IMAGE} ." in dockerfile


def test_images_of_others_have_a_version_and_a_place_for_a_digest() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text("utf-8")
    services = compose()["services"]
    (base,) = re.findall(r"^ARG BASE=(.+)$", dockerfile, re.MULTILINE)
    assert ["${BASE}"] == re.findall(r"^FROM (.+)$", dockerfile, re.MULTILINE)
    ours = services["gateway"]["build"]["args"]["BASE"]
    assert f"${{PYTHON_IMAGE:-{base}}}" == ours
    named = dict(re.fullmatch(r"\$\{(\w+_IMAGE):-(.+)\}", one).groups() for one in {  # type: ignore[union-attr]
        ours, *(service["image"] for service in services.values() if service["image"] != IMAGE)
    })  # fmt: skip
    assert BASES == set(named.values())
    page = (ROOT / "docs" / "operations" / "containers.md").read_text("utf-8")
    for variable, image in named.items():
        name, tag = image.split(":")
        assert re.match(r"\d+\.\d+", tag), "latest"
        assert f"{variable}={name}@sha256:" in page


def test_a_gateway_of_the_examples_asks_for_a_key() -> None:
    """Beyond loopback a gateway without accounts is open to everybody who reaches it."""
    examples = [path for path in (ROOT / "conf").rglob("*") if path.is_file()]
    assert [] == [path for path in examples if "--insecure" in path.read_text("utf-8")]
    serving = [command for command in commands() if command[:2] == ["cassieq", "serve"]]
    assert 2 == len(serving)
    assert all("--auth" in command for command in serving)
    assert ["127.0.0.1:8080:8080"] == compose()["services"]["gateway"]["ports"]


def test_the_containers_of_compose_may_do_little() -> None:
    for service in compose()["services"].values():
        if "build" in service:
            assert (True, ["ALL"]) == (service["read_only"], service["cap_drop"])
            assert ["no-new-privileges:true"] == service["security_opt"]
