"""`spark-submit "$(cassieq job-path redrive)"` sends dead letters back, each of them once.

... --queue orders.dead --where "reason = 'timeout' and tag = 'eu'" --dry-run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from cassieq_spark.cli.flags import ConnectionGiven, command
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.repair import check_report_file, is_for_a_program, write_report
from cassieq_spark.cli.shell import FAILED, USAGE, Out, exit_codes, print_problem, run_job
from cassieq_spark.options import Spelling, parse_connection, queue_name
from cassieq_spark.spark.jobs.redrive import redrive_where

job = typer.Typer(add_completion=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    return run_job(job, arguments)


@command(job)
def redrive(
    connection: ConnectionGiven,
    logs: Logged,
    *,
    queue: str,
    where: str | None = None,
    to: str | None = None,
    dry_run: bool = False,
    report: str | None = None,
) -> None:
    """Send dead letters back, each of them once.

    The condition may use the columns of view `messages`, and source_queue, reason, deliveries,
    first_time and last_time. Exit codes: 0 done; 1 something stays or waits, and standard error
    says what; 2 an argument is wrong.

    Args:
        queue: The queue that holds the dead letters.
        where: A condition in SQL. Default: all visible messages.
        to: The queue to send them to. Default: each goes to the queue that it came from.
        dry_run: Only say which messages would go where.
        report: Write the report into this file, as JSON.
    """
    logs.start()
    with exit_codes():
        parse_connection(connection, Spelling.SHELL)
        check_report_file(report)
        name = queue_name(queue)
        target = None if to is None else queue_name(to)
        try:
            done = redrive_where(
                SparkSession.builder.appName(f"redrive {name}").getOrCreate(),
                where,
                connection=connection,
                queue=name,
                to=target,
                is_dry_run=dry_run,
            )
        except PySparkException as error:
            print_problem(error)
            raise typer.Exit(USAGE if isinstance(error, AnalysisException) else FAILED) from error
        for problem in done.problems:
            print_problem(problem)
        write_report(report, done.to_dict())
        Out(as_json=is_for_a_program()).result(done.to_dict())
    if done.problems:
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    sys.exit(main())
