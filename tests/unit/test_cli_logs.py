"""What an operator reads in the log of a gateway, exporter, worker or repair."""

from __future__ import annotations

import json
import re

import pytest
import typer
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from cassieq_spark.cli.app import app
from cassieq_spark.cli.flags import command
from cassieq_spark.cli.logs import OURS, Form, Level, Logged, Logs
from cassieq_spark.cli.repair import changed
from cassieq_spark.log import event, get_logger
from cassieq_spark.repair.report import QueueRepair, RepairReport
from cassieq_spark.server.guards import Asked, RequestMetrics

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_a_line_has_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    Logs().start()
    event(get_logger("server"), "repair_failed", error="no")
    line = f"{TIME} WARNING cassieq_spark.server: repair_failed error=no\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_json_is_one_object_a_line_with_name_and_fields_and_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Logs(level=Level.DEBUG, form=Form.JSON).start()
    event(get_logger("server"), "repair_failed", error="two\nlines", at=OURS)
    get_logger("server").debug("request %s", "7", exc_info=ValueError("bug"))

    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert re.fullmatch(TIME, first["time"])
    assert ("repair_failed", "WARNING") == (first["event"], first["level"])
    assert {"error": "two\nlines", "at": OURS} == first["fields"]
    assert "request 7" == second["message"]
    assert "ValueError: bug" in second["traceback"]


@pytest.mark.parametrize("form", list(Form))
def test_what_a_command_itself_says_is_a_line_of_its_log(
    form: Form, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Logs(level=Level.ERROR, form=form)
    logs.start()
    logs.note("Listening")
    logs.problem("lost\nit")
    first, *more = capsys.readouterr().err.splitlines()
    if form is Form.JSON:
        assert ("INFO", "Listening") == (json.loads(first)["level"], json.loads(first)["message"])
        assert ["WARNING"] == [json.loads(line)["level"] for line in more]
    else:
        assert re.fullmatch(f"{TIME} INFO cassieq_spark.cli: Listening", first)


def test_a_level_leaves_out_what_is_below(capsys: pytest.CaptureFixture[str]) -> None:
    Logs(level=Level.ERROR).start()
    event(get_logger("server"), "repair_failed", error="no")
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize("access", [True, False])
def test_each_request_has_a_line_only_if_asked_for(
    access: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    class Idle:
        count = calls = threads = 0

    Logs().start(access=access)
    requests = RequestMetrics(CollectorRegistry(), Idle())  # type: ignore[arg-type]  # asked at a scrape only
    asked = Asked("rest", operation="putMessage", status=404, code="queue_not_found")
    requests.end(asked, requests.begin(asked))
    found = capsys.readouterr().err
    shown = r"api=rest operation=putMessage status=404 took_ms=\d+\.\d error=queue_not_found"
    line = f"{TIME} INFO cassieq_spark.access: request_answered {shown}\n"
    assert re.fullmatch(line if access else "", found)


@pytest.mark.parametrize("command", ["serve", "exporter", "worker", "repair"])
def test_a_level_that_does_not_exist_is_refused_by_flag_and_variable(command: str) -> None:
    more = ["module:function", "orders"] if command == "worker" else []
    for given, variables in ((["--log-level", "loud"], {}), ([], {"CASSIEQ_LOG_LEVEL": "loud"})):
        ended = CliRunner().invoke(app, [command, *more, *given], env=variables)
        assert 2 == ended.exit_code
        assert "loud" in ended.output


def test_a_pass_of_many_is_one_line_of_what_changed() -> None:
    report = RepairReport(
        queues=[QueueRepair(queue="idle"), QueueRepair(queue="orders", dropped=3, moved_dead=1)],
        deletions_finished=["old"],
    )
    told = "queue orders: moved_dead 1, dropped 3; finished the deletion of queue old"
    assert told == changed(report)
    assert "" == changed(RepairReport(queues=[QueueRepair(queue="idle")]))


def test_a_job_takes_level_and_form_by_flag_and_variable() -> None:
    seen: list[Logs] = []
    job = typer.Typer()

    @command(job)
    def work(logs: Logged) -> None:
        seen.append(logs)

    assert 0 == CliRunner().invoke(job, ["--log-level", "INFO", "--log-format", "json"]).exit_code
    assert [Logs(level=Level.INFO, form=Form.JSON)] == seen
    ended = CliRunner().invoke(job, [], env={"CASSIEQ_LOG_LEVEL": "loud"})
    assert 2 == ended.exit_code
    assert "'loud' is not one of" in ended.output
