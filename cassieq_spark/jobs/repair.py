"""`spark-submit "$(cassieq job-path repair)"` repairs queues after processes died.

Exit codes: 0 healed; 1 something needs a person, and standard error says what; 2 an argument is
wrong. With --interval, the next pass tries again what failed. A wrong argument ends the job.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cassieq_spark.cli.exits import ended_by
from cassieq_spark.cli.files import check_report_file, write_metrics, write_report
from cassieq_spark.cli.flags import add_connection, connection_of
from cassieq_spark.cli.logs import add_logging, logs_of
from cassieq_spark.cli.output import print_note, print_problem
from cassieq_spark.cli.repair import changed, check_metrics_file, is_for_a_program, show
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, OptionInvalid, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.options import parse_connection, queue_name
from cassieq_spark.options.values import NotAllowed, seconds
from cassieq_spark.queue.find import lanes_of
from cassieq_spark.repair.dry_run import heal_dry_run
from cassieq_spark.repair.lead import leading
from cassieq_spark.repair.report import VerifyReport
from cassieq_spark.repair.verify import verify
from cassieq_spark.spark.jobs.repair import heal
from cassieq_spark.store import portal
from cassieq_spark.store.store import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.cli.logs import Logs
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.repair.report import RepairReport

_logger = get_logger("jobs")

HEALED, NEEDS_A_PERSON = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = parser().parse_args(arguments)
    logs = logs_of(given)
    logs.start()
    _logger.setLevel(logging.INFO)  # what changed is what this job has to say
    try:
        connection = parse_connection(connection_of(given))
        every_s = None if given.once else _interval_s(given.interval)
        names = [queue_name(name) for name in given.queue] if given.queue else None
        check_report_file(given.report)
        check_metrics_file(given.metrics_file, is_whole=names is None and not given.dry_run)
    except UsageError as error:
        return ended_by(error)
    clock = SystemClock()
    while True:
        code = _pass(given, connection, names, None if given.once else logs)
        if every_s is None or code not in (HEALED, NEEDS_A_PERSON):
            return code
        clock.wait(every_s)


def _show(found: RepairReport | VerifyReport, logs: Logs | None) -> bool:
    if logs is None:
        return show(found, as_json=is_for_a_program())
    if isinstance(found, VerifyReport):
        return show(found, as_json=is_for_a_program(), tell=logs.problem)
    if told := changed(found):
        event(_logger, "repair_changed", what=told)
    for problem in found.problems:
        event(_logger, "repair_failed", error=problem)
    return bool(found.problems)


def _interval_s(given: str) -> float:
    allowed = seconds(1, 86_400)
    try:
        return allowed.parse(given)
    except NotAllowed as error:
        raise OptionInvalid(f"--interval is {given!r}, allowed: {allowed.allowed}") from error


def _pass(
    given: argparse.Namespace, connection: ConnectionOptions, names: Any, logs: Logs | None
) -> int:
    """Run one pass.

    Args:
        logs: Of a job that repeats: its lines have a time. None: this is the only pass.
    """
    try:
        found = _work(given, connection, names)
        if found is None:
            say = print_note if logs is None else logs.note
            say("another repair is at work, so there is nothing to do")
            return HEALED
        write_report(given.report, found.to_dict())
        write_metrics(given.metrics_file, found)
        needs_a_person = _show(found, logs)
    except (CassieqError, BrokenPipeError) as error:
        return ended_by(error, print_problem if logs is None else logs.problem)
    except PySparkException as error:
        (print_problem if logs is None else logs.problem)(str(error))
        return NEEDS_A_PERSON
    return NEEDS_A_PERSON if needs_a_person else HEALED


def _work(
    given: argparse.Namespace, connection: ConnectionOptions, names: Any
) -> RepairReport | VerifyReport | None:
    with opened(connection) as store:
        if given.verify:
            return portal.run(
                verify(store, portal.run(lanes_of(store, names)), has_all=names is None)
            )
        if given.dry_run:
            return portal.run(heal_dry_run(store, names))
        with portal.entered(leading(store)) as is_leader:
            if not (is_leader or given.no_leader):
                return None
            spark = SparkSession.builder.appName("cassieq repair").getOrCreate()
            return heal(spark, connection, names, is_full=given.full)


def parser() -> argparse.ArgumentParser:
    """Of its command line."""
    known = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    known.add_argument(
        "--queue",
        action="append",
        help="a queue to repair; repeatable; default: every queue in the keyspace (of this data "
        "centre)",
    )
    when = known.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="run one pass, then end")
    when.add_argument("--interval", default="30s", help="time between passes (default 30s)")
    what = known.add_mutually_exclusive_group()
    what.add_argument("--full", action="store_true", help="also sweep below the repair pointers")
    what.add_argument("--dry-run", action="store_true", help="only say what would be done")
    what.add_argument("--verify", action="store_true", help="only look for broken invariants")
    known.add_argument("--report", help="write the report into this file, as JSON")
    known.add_argument(
        "--metrics-file",
        help="write when the pass ended and what it found into this file, for node_exporter",
    )
    known.add_argument(
        "--no-leader", action="store_true", help="work even if another repair is at work"
    )
    add_logging(known)
    add_connection(known)
    return known


if __name__ == "__main__":
    sys.exit(main())
