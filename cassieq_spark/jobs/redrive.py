"""`spark-submit "$(cassieq job-path redrive)"` sends dead letters back, each of them once.

    ... --queue orders.dead --where "reason = 'timeout' and tag = 'eu'" --dry-run

The condition may use the columns of view `messages`, and source_queue, reason, deliveries,
first_time and last_time. Exit codes: 0 done; 1 something stays or waits, and standard error says
what; 2 an argument is wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from cassieq_spark.cli.exits import ended_by
from cassieq_spark.cli.files import check_report_file, write_report
from cassieq_spark.cli.flags import add_connection, connection_of
from cassieq_spark.cli.logs import add_logging, logs_of
from cassieq_spark.cli.output import print_error, print_problem, print_result
from cassieq_spark.cli.repair import is_for_a_program
from cassieq_spark.errors import CassieqError
from cassieq_spark.options import parse_connection, queue_name
from cassieq_spark.spark.jobs.redrive import redrive_where

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE, NEEDS_A_PERSON, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = parser().parse_args(arguments)
    logs_of(given).start()
    connection = connection_of(given)
    try:
        parse_connection(connection)
        check_report_file(given.report)
        queue = queue_name(given.queue)
        to = None if given.to is None else queue_name(given.to)
        done = redrive_where(
            SparkSession.builder.appName(f"redrive {queue}").getOrCreate(),
            given.where,
            connection=connection,
            queue=queue,
            to=to,
            is_dry_run=given.dry_run,
        )
        for problem in done.problems:
            print_problem(problem)
        write_report(given.report, done.to_dict())
        print_result(done.to_dict(), as_json=is_for_a_program())
    except (CassieqError, BrokenPipeError) as error:
        return ended_by(error)
    except PySparkException as error:
        print_error(error)
        return USAGE if isinstance(error, AnalysisException) else NEEDS_A_PERSON
    return NEEDS_A_PERSON if done.problems else DONE


def parser() -> argparse.ArgumentParser:
    """Of its command line."""
    known = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    known.add_argument("--queue", required=True, help="queue that holds the dead letters")
    known.add_argument("--where", help="condition in SQL; default: all visible messages")
    known.add_argument(
        "--to", help="queue to send them to; default: each goes to the queue that it came from"
    )
    known.add_argument(
        "--dry-run", action="store_true", help="only say which messages would go where"
    )
    known.add_argument("--report", help="write the report into this file, as JSON")
    add_logging(known)
    add_connection(known)
    return known


if __name__ == "__main__":
    sys.exit(main())
