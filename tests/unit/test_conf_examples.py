"""The schedules of conf/repair are what their readers take, and run what `jobs/repair.py` takes."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cassieq_spark.cli.flags import connection_given, flag_of
from cassieq_spark.options.option import CONNECTION

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "conf" / "repair"
JOB = "/opt/cassieq/jobs/repair.py"

#: What runs each minute or so, once a week, once a day.
PASS, FULL, VERIFY = ["--once"], ["--once", "--full", "--no-leader"], ["--once", "--verify"]

TEXTFILES = "/var/lib/node_exporter"

FIELD = r"(\*|\d+)(/\d+)?"
CRON = re.compile(rf"{FIELD} {FIELD} {FIELD} {FIELD} {FIELD}")
VARIABLE = re.compile(r"[A-Z_]+=\S+")
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


Flags = dict[str, Any]


def parse(job: str, arguments: list[str]) -> Flags:
    """The flags as the job takes them; SystemExit if it does not."""
    command = typer.main.get_command(runpy.run_path(str(ROOT / "jobs" / f"{job}.py"))["job"])
    with command.make_context(job, list(arguments)) as context:
        return context.params


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


def check_accepted(arguments: list[str]) -> Flags:
    """It ends: without --once a job of a scheduler would run until it is killed."""
    given = parse("repair", arguments)
    assert given["once"]
    return given


def check_all_three(each: list[list[str]], metrics_in: str = TEXTFILES) -> None:
    """A pass, a full one and a verify; and the alerts about the first and the last can know."""
    found = [check_accepted(arguments) for arguments in each]
    assert [PASS, FULL, VERIFY] == [without_files(arguments) for arguments in each]
    assert [f"{metrics_in}/cassieq_repair.prom", None, f"{metrics_in}/cassieq_verify.prom"] == [
        given["metrics_file"] for given in found
    ]


def without_files(arguments: list[str]) -> list[str]:
    files = {"--report", "--metrics-file"}
    pairs = zip(["", *arguments], arguments, strict=False)
    return [one for before, one in pairs if one not in files and before not in files]


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


def test_cron_runs_all_three() -> None:
    jobs = crontab_jobs()
    for schedule, _ in jobs:
        check_schedule(schedule)
    check_all_three([job_arguments(command) for _, command in jobs])


def test_the_cron_jobs_of_kubernetes_run_all_three() -> None:
    found = documents("../kubernetes/cronjob.yaml") + documents("../kubernetes/passes.yaml")
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
        seen.append(job_arguments([*container["command"], *container["args"]]))
    check_all_three(seen, metrics_in="/metrics")
    assert 3 == len({one["metadata"]["name"] for one in found})


def test_the_spark_operators_application_is_whole() -> None:
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
    assert {"cores", "instances", "memory", "envFrom"} <= template["executor"].keys()
    assert PASS == template["arguments"]
    check_accepted(template["arguments"])


def test_the_airflow_file_compiles_and_runs_all_three() -> None:
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
        check_accepted(arguments)
    assert [PASS, FULL, VERIFY] == [arguments for _, arguments in schedules]


def test_the_guide_names_every_example_and_its_commands_are_the_jobs_own() -> None:
    text = (ROOT / "docs" / "operations" / "repair.md").read_text("utf-8")
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert 3 == len(names)
    named = {f"conf/repair/{name}" for name in names} | {"conf/kubernetes/cronjob.yaml"}
    assert set() == {name for name in named if name not in text}
    metrics = (ROOT / "docs" / "operations" / "metrics.md").read_text("utf-8")
    assert TEXTFILES in metrics
    job = r"(?:jobs/repair\.py|path repair\)\")"
    commands = re.findall(job + r"((?: --[a-z-]+(?: [^-\s`|][^\s`|]*)?)+)", text)
    assert len(commands) >= 3
    for command in commands:
        parse("repair", shlex.split(command))


@pytest.mark.parametrize("job", ["repair", "redrive"])
def test_a_job_takes_every_option_of_the_connection_but_secrets(job: str) -> None:
    given = {
        option.name: [flag_of(option)] if option.default is True else [flag_of(option), "x"]
        for option in CONNECTION
        if not option.is_secret
    }
    own = ["--queue", "orders"] if job == "redrive" else []

    parsed = parse(job, [*own, *(word for words in given.values() for word in words)])

    assert dict.fromkeys(given, "x") | {"sslVerifyHostname": True} == connection_given(parsed)
    assert dict.fromkeys(given) == connection_given(parse(job, own))
