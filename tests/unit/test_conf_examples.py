"""The schedules of conf/repair are what their readers take, and run what `jobs/repair.py` takes."""

from __future__ import annotations

import argparse
import ast
import configparser
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cassieq_spark.cli.flags import connection_of, flag_of
from cassieq_spark.options.of_connection import CONNECTION

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "conf" / "repair"
JOB = "/opt/cassieq/jobs/repair.py"

#: What runs each minute or so, once a week, once a day.
PASS, FULL, VERIFY = ["--once"], ["--once", "--full", "--no-leader"], ["--once", "--verify"]

FIELD = r"(\*|\d+)(/\d+)?"
CRON = re.compile(rf"{FIELD} {FIELD} {FIELD} {FIELD} {FIELD}")
VARIABLE = re.compile(r"[A-Z_]+=\S+")
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """The job's own."""
    found: argparse.ArgumentParser = runpy.run_path(str(ROOT / "jobs" / "repair.py"))["parser"]()
    return found


def check_schedule(text: str) -> None:
    assert CRON.fullmatch(text), text
    for field, (low, high) in zip(text.split(), RANGES, strict=True):
        assert all(low <= int(number) <= high for number in re.findall(r"(?<!/)\b\d+", field))


def job_arguments(command: list[str]) -> list[str]:
    """Of a command that submits the job."""
    submit, *options, job = command[: command.index(JOB) + 1]
    assert ("spark-submit", JOB) == (Path(submit).name, job)
    assert ["--master", "local[2]"] == options
    return command[command.index(JOB) + 1 :]


def check_accepted(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """It ends: without --once a job of a scheduler would run until it is killed."""
    given = parser.parse_args(arguments)
    assert given.once
    return given


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text("utf-8")))


def crontab_jobs() -> list[tuple[str, list[str]]]:
    """(schedule, command), of a user's crontab: five fields, and no user."""
    found = []
    for line in (EXAMPLES / "crontab").read_text("utf-8").splitlines():
        if not line or line.startswith("#") or VARIABLE.fullmatch(line):
            continue
        fields = line.split(maxsplit=5)
        assert "%" not in fields[5], "cron makes a line end of it"
        found.append((" ".join(fields[:5]), shlex.split(fields[5])))
    return found


def units() -> dict[str, configparser.ConfigParser]:
    found = {}
    for path in EXAMPLES.glob("cassieq-repair.*"):
        unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
        unit.optionxform = str  # type: ignore[assignment,method-assign]  # as its docs have it
        unit.read_string(path.read_text("utf-8"))
        found[path.suffix] = unit
    return found


def test_cron_runs_all_three(parser: argparse.ArgumentParser) -> None:
    jobs = crontab_jobs()
    for schedule, _ in jobs:
        check_schedule(schedule)
    each = [job_arguments(command) for _, command in jobs]
    assert [PASS, FULL, VERIFY] == [
        arguments[: arguments.index("--report")] if "--report" in arguments else arguments
        for arguments in each
    ]
    for arguments in each:
        check_accepted(parser, arguments)


def test_the_systemd_units_belong_together(parser: argparse.ArgumentParser) -> None:
    found = units()
    service, timer = found[".service"], found[".timer"]
    assert "oneshot" == service["Service"]["Type"]
    assert {"OnBootSec", "OnUnitInactiveSec"} <= timer["Timer"].keys()
    assert "timers.target" == timer["Install"]["WantedBy"]
    check_accepted(parser, job_arguments(shlex.split(service["Service"]["ExecStart"])))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in EXAMPLES.glob("cassieq-repair.*"):
        text = path.read_text("utf-8")
        # What is installed on this machine is not what is tested.
        text = text.replace("/opt/cassieq/venv/bin/spark-submit", sys.executable)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "cassieq-repair" in line]
    assert (0, []) == (done.returncode, said), done.stderr


def test_the_cron_jobs_of_kubernetes_run_all_three(parser: argparse.ArgumentParser) -> None:
    found = documents("cronjob.yaml")
    seen = []
    for one in found:
        assert ("batch/v1", "CronJob") == (one["apiVersion"], one["kind"])
        check_schedule(one["spec"]["schedule"])
        assert "Forbid" == one["spec"]["concurrencyPolicy"]
        job = one["spec"]["jobTemplate"]["spec"]
        assert 0 == job["backoffLimit"]
        pod = job["template"]["spec"]
        assert "Never" == pod["restartPolicy"]
        (container,) = pod["containers"]
        assert {"name", "image", "command", "args", "envFrom", "resources"} == container.keys()
        seen.append(job_arguments([*container["command"], *container["args"]]))
        check_accepted(parser, seen[-1])
    assert [PASS, FULL, VERIFY] == seen
    assert 3 == len({one["metadata"]["name"] for one in found})


def test_the_spark_operators_application_is_whole(parser: argparse.ArgumentParser) -> None:
    (found,) = documents("scheduled-spark-application.yaml")
    assert ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication") == (
        found["apiVersion"],
        found["kind"],
    )
    check_schedule(found["spec"]["schedule"])
    assert "Forbid" == found["spec"]["concurrencyPolicy"]
    template = found["spec"]["template"]
    assert ("Python", "3", "cluster", f"local://{JOB}") == tuple(
        template[key] for key in ("type", "pythonVersion", "mode", "mainApplicationFile")
    )
    assert {"type": "Never"} == template["restartPolicy"]
    assert {"image", "sparkVersion", "driver", "executor"} <= template.keys()
    assert {"cores", "instances", "memory", "envFrom"} == template["executor"].keys()
    assert PASS == template["arguments"]
    check_accepted(parser, template["arguments"])


def test_the_airflow_file_compiles_and_runs_all_three(parser: argparse.ArgumentParser) -> None:
    path = EXAMPLES / "airflow_dag.py"
    tree = ast.parse(path.read_text("utf-8"), str(path))
    compile(tree, str(path), "exec")
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert JOB == constants["JOB"]
    schedules = list(constants["SCHEDULES"].values())
    for schedule, arguments in schedules:
        check_schedule(schedule)
        check_accepted(parser, arguments)
    assert [PASS, FULL, VERIFY] == [arguments for _, arguments in schedules]


def test_the_guide_names_every_example_and_its_commands_are_the_jobs_own(
    parser: argparse.ArgumentParser,
) -> None:
    text = (ROOT / "docs" / "operations" / "repair.md").read_text("utf-8")
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert 6 == len(names)
    assert set() == {name for name in names if f"conf/repair/{name}" not in text}
    job = r"(?:jobs/repair\.py|path repair\)\")"
    commands = re.findall(job + r"((?: --[a-z-]+(?: [^-\s`|][^\s`|]*)?)+)", text)
    assert len(commands) >= 3
    for command in commands:
        parser.parse_args(shlex.split(command))


@pytest.mark.parametrize("job", ["repair", "redrive"])
def test_a_job_takes_every_option_of_the_connection_but_secrets(job: str) -> None:
    known = runpy.run_path(str(ROOT / "jobs" / f"{job}.py"))["parser"]()
    given = {
        option.name: [flag_of(option)] if option.default is True else [flag_of(option), "x"]
        for option in CONNECTION
        if not option.is_secret
    }
    own = ["--queue", "orders"] if job == "redrive" else []

    parsed = known.parse_args([*own, *(word for words in given.values() for word in words)])

    assert dict.fromkeys(given, "x") | {"sslVerifyHostname": True} == connection_of(parsed)
    assert dict.fromkeys(given) == connection_of(known.parse_args(own))
