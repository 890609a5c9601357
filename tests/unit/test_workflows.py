"""The workflow files are as GitHub's schema says, and run targets that make has."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
MATRIX = re.compile(r"\$\{\{ matrix\.([a-z]+) \}\}")


def check(*paths: Path, schema: str = "vendor.github-workflows") -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("check-jsonschema"),
            "--builtin-schema",
            schema,
            *paths,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def jobs() -> dict[str, dict[str, Any]]:
    return {
        f"{path.stem}.{name}": job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text("utf-8"))["jobs"].items()
    }


def runs(job: dict[str, Any]) -> list[tuple[dict[str, str], str]]:
    """(values of its matrix, command) of each step that runs one, matrix filled in."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = []
    for values in itertools.product(*matrix.values()):
        chosen = dict(zip(matrix, values, strict=True))
        for step in job["steps"]:
            if "run" in step:
                command = MATRIX.sub(lambda name, of=chosen: of[name[1]], step["run"])
                found.append((chosen, command))
    return found


def test_they_are_as_the_schema_says() -> None:
    assert ["ci", "long", "publish"] == [path.stem for path in WORKFLOWS]
    check(*WORKFLOWS)


def test_every_step_is_one_target_of_make() -> None:
    """What a workflow does, everybody can do: there is nothing else in it."""
    for name, job in jobs().items():
        for _, command in runs(job):
            said = re.fullmatch(r"make ([a-z-]+)", command)
            assert said is not None, (name, command)
            assert said[1] in TARGETS, (name, command)


def test_every_python_and_both_ends_of_what_spark_is_supported_are_tested() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert 4 == len(pythons)
    tested = {(chosen["python"], command) for chosen, command in runs(jobs()["ci.test"])}
    assert tested == {(python, "make test") for python in pythons}
    ends = {(chosen["python"], command) for chosen, command in runs(jobs()["ci.ends"])}
    assert ends == set(
        itertools.product((pythons[0], pythons[-1]), ("make test-lowest", "make test-installed"))
    )


def test_no_workflow_may_write_or_run_for_ever() -> None:
    for path in WORKFLOWS:
        assert {"contents": "read"} == yaml.safe_load(path.read_text("utf-8"))["permissions"]
    assert all("timeout-minutes" in job for job in jobs().values())


def test_only_the_upload_may_name_itself_to_the_index() -> None:
    more = {name: job["permissions"] for name, job in jobs().items() if "permissions" in job}
    assert {"publish.upload": {"id-token": "write"}} == more
    (upload,) = [
        step["uses"] for step in jobs()["publish.upload"]["steps"] if "pypa/" in step["uses"]
    ]
    assert upload.startswith("pypa/gh-action-pypi-publish@")


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.dependabot", "dependabot.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
    ],
)
def test_what_else_is_for_the_code_host_is_as_its_schema_says(schema: str, pattern: str) -> None:
    found = sorted((ROOT / ".github").glob(pattern))
    assert found
    check(*found, schema=schema)
