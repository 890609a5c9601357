"""The package's jobs are where `cassieq job-path` says; those of a checkout are the same code."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cassieq_spark.cli.app import app
from cassieq_spark.jobs import redrive, repair, to_files

JOBS = {"redrive": redrive, "repair": repair, "to_files": to_files}
CHECKOUT = Path(__file__).resolve().parents[2] / "jobs"


@pytest.mark.parametrize("name", JOBS)
def test_the_shell_prints_where_a_job_is(name: str) -> None:
    done = CliRunner().invoke(app, ["job-path", name])

    assert (0, f"{JOBS[name].__file__}\n") == (done.exit_code, done.stdout)


def test_a_job_that_is_not_there_is_named_with_those_that_are() -> None:
    done = CliRunner().invoke(app, ["job-path", "repiar"])

    assert (2, "") == (done.exit_code, done.stdout)
    assert "[cassieq:option_invalid] there is no job 'repiar'. " in done.stderr
    assert "The jobs are: redrive, repair, to_files\n" in done.stderr


@pytest.mark.parametrize("name", JOBS)
def test_the_path_in_a_checkout_runs_the_packages_job(name: str) -> None:
    assert JOBS[name].main is runpy.run_path(str(CHECKOUT / f"{name}.py"))["main"]


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("flag", ["--log-level", "--log-format"])
def test_a_job_refuses_a_level_and_a_form_of_logs_that_do_not_exist(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--contact-points", "127.0.0.1:1", "--queue", "orders"]
    files = ["--output", "out", "--checkpoint", "point"] if name == "to_files" else []

    assert 2 == JOBS[name].main([*where, *files, flag, "loud"])
    said = capsys.readouterr().err
    assert f"Invalid value for '{flag}'" in said
    assert "'loud' is not one of" in said


@pytest.mark.parametrize("name", JOBS)
def test_a_job_runs_as_a_file_too(name: str) -> None:
    """spark-submit gives it no package: it may import nothing relatively, and must call main."""
    tree = ast.parse(Path(JOBS[name].__file__ or "").read_text("utf-8"))
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]

    assert [] == relative
    assert 'if __name__ == "__main__":\n    sys.exit(main())' in ast.unparse(tree).replace("'", '"')
