"""`spark-submit "$(cassieq job-path repair)"` repairs queues after processes died."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cassieq_spark.cli.flags import ConnectionGiven, command
from cassieq_spark.cli.logs import Logged, Logs
from cassieq_spark.cli.repair import (
    changed,
    check_metrics_file,
    check_report_file,
    is_for_a_program,
    only_one,
    show,
    write_metrics,
    write_report,
)
from cassieq_spark.cli.shell import (
    FAILED,
    Out,
    ended_by,
    exit_codes,
    print_note,
    print_problem,
    run_job,
)
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.options import Spelling, parse_connection, queue_name, values
from cassieq_spark.queue.find import lanes_of
from cassieq_spark.queue.schedules.dispatch import dispatch
from cassieq_spark.repair.dry_run import heal_dry_run
from cassieq_spark.repair.lead import leading
from cassieq_spark.repair.report import RepairReport, VerifyReport
from cassieq_spark.repair.verify import verify as verify_lanes
from cassieq_spark.spark.jobs.repair import heal
from cassieq_spark.store import portal
from cassieq_spark.store.store import Store, opened

job = typer.Typer(add_completion=False)

_logger = get_logger("jobs")

HEALED: Final = 0

INTERVAL: Final = values.seconds(1, 86_400)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    return run_job(job, arguments)


@command(job)
def repair(
    connection: ConnectionGiven,
    logs: Logged,
    *,
    queue: list[str] | None = None,
    once: bool = False,
    interval: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    full: bool = False,
    dry_run: bool = False,
    verify: bool = False,
    report: str | None = None,
    metrics_file: str | None = None,
    no_leader: bool = False,
) -> None:
    """Repair queues after processes died.

    Exit codes: 0 healed; 1 something needs a person, and standard error says what; 2 an argument is
    wrong. With --interval, the next pass tries again what failed. A wrong argument ends the job.

    Args:
        queue: A queue to repair; repeatable. Default: every queue in the keyspace (of this data
            centre).
        once: Run one pass, then end.
        interval: The time between passes. Default: 30s.
        full: Also sweep below the repair pointers.
        dry_run: Only say what would be done.
        verify: Only look for broken invariants.
        report: Write the report into this file, as JSON.
        metrics_file: Write when the pass ended and what it found into this file, for node_exporter.
        no_leader: Work even if another repair is at work.
    """
    logs.start()
    _logger.setLevel(logging.INFO)  # what changed is what this job has to say
    clock = SystemClock()
    with exit_codes():
        only_one("--once and --interval", once, interval is not None)
        only_one("--full, --dry-run and --verify", full, dry_run, verify)
        given = parse_connection(connection, Spelling.SHELL)
        names = [queue_name(name) for name in queue] if queue else None
        every_s = None if once else INTERVAL.checked("--interval", interval or "30s")
        check_report_file(report)
        check_metrics_file(metrics_file, is_whole=not queue and not dry_run)

        def work() -> RepairReport | VerifyReport | None:
            with opened(given) as store:
                if verify:
                    lanes = portal.run(lanes_of(store, names))
                    return portal.run(verify_lanes(store, lanes, has_all=names is None))
                if dry_run:
                    return portal.run(heal_dry_run(store, names))
                with portal.entered(leading(store)) as is_leader:
                    if not (is_leader or no_leader):
                        return None
                    _dispatch(store)
                    spark = SparkSession.builder.appName("cassieq repair").getOrCreate()
                    return heal(spark, given, names, is_full=full)

        while True:
            code = _pass(work, report, metrics_file, None if once else logs)
            if every_s is None or code not in (HEALED, FAILED):
                raise typer.Exit(code)
            clock.wait(every_s)


def _dispatch(store: Store) -> None:
    """Put the messages of schedules ahead. Its failure does not keep a pass from repairing."""
    try:
        portal.run(dispatch(store))
    except CassieqError as error:
        event(_logger, "schedules_failed", error=str(error))


def _show(found: RepairReport | VerifyReport, logs: Logs | None) -> bool:
    if logs is None or isinstance(found, VerifyReport):
        tell = print_problem if logs is None else logs.problem
        return show(found, Out(as_json=is_for_a_program()), tell=tell)
    if told := changed(found):
        event(_logger, "repair_changed", what=told)
    for problem in found.problems:
        event(_logger, "repair_failed", error=problem)
    return bool(found.problems)


def _pass(
    work: Callable[[], RepairReport | VerifyReport | None],
    report: str | None,
    metrics_file: str | None,
    logs: Logs | None,
) -> int:
    """Run one pass.

    Args:
        logs: Of a job that repeats: its lines have a time. None: this is the only pass.
    """
    tell = print_problem if logs is None else logs.problem
    try:
        found = work()
        if found is None:
            say = print_note if logs is None else logs.note
            say("another repair is at work, so there is nothing to do")
            return HEALED
        write_report(report, found.to_dict())
        write_metrics(metrics_file, found)
        return FAILED if _show(found, logs) else HEALED
    except (CassieqError, BrokenPipeError) as error:
        return ended_by(error, tell)
    except PySparkException as error:
        tell(str(error))
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
