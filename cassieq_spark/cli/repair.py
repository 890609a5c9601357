"""``cassieq repair`` runs a pass; this module also shows the passes of `jobs/repair.py`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cassieq_spark.cli import flags, shell
from cassieq_spark.cli.logs import Logged
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.repair import outcome
from cassieq_spark.repair.report import RepairReport, VerifyReport


def check_report_file(path: str | None, option: str = "--report") -> None:
    """Refuse a file that cannot be written, before a pass has spent its time.

    Raises:
        OptionInvalid: The folder does not exist, or this user may not write there.
    """
    if path is None:
        return
    file = Path(path)
    target = file if file.exists() else file.parent
    if file.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise OptionInvalid(
            f"{option} {path} cannot be written. Name a file in a folder that exists and that "
            "this user may write to"
        )


def write_report(path: str | None, report: Mapping[str, Any]) -> None:
    """Write the report as JSON, if a file is given.

    Raises:
        OutputFailed: The disk is full, for example. The work is done.
    """
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise shell.cannot_write(f"--report {path}", error) from error


def write_metrics(path: str | None, report: RepairReport | VerifyReport) -> None:
    """Write what is known of a pass over all queues for node_exporter, if a file is given.

    Raises:
        OutputFailed: The disk is full, for example. The work is done.
    """
    if path is None:
        return
    outcome.note(report, SystemClock().now_us())
    # node_exporter may read at any time, and reads *.prom only: it never finds half a file.
    half = Path(f"{path}.{os.getpid()}")
    try:
        half.write_text(outcome.as_text(), "utf-8")
        half.replace(path)
    except OSError as error:
        raise shell.cannot_write(f"--metrics-file {path}", error) from error


def repair(
    connection: flags.Connected,
    logs: Logged,
    out: shell.Printed,
    queue: Annotated[str | None, typer.Argument(autocompletion=flags.queue_names)] = None,
    *,
    full: bool = False,
    dry_run: bool = False,
    verify: bool = False,
    metrics_file: Annotated[str | None, typer.Option(metavar="FILE")] = None,
) -> None:
    """Run a repair pass: finish what others left half-way, move dead messages, drop what is done.

    Exit code 1 if something could not be done or looked at, or if --verify finds a broken
    invariant.

    Args:
        queue: Default: every queue in the keyspace (of this data centre).
        full: Also sweep below the repair pointers.
        dry_run: Only say what would be done.
        verify: Only look for broken invariants.
        metrics_file: Write when the pass ended and what it found, for node_exporter: DIR/NAME.prom.

    Example:
        cassieq repair orders --dry-run
    """
    logs.start()
    only_one("--full, --dry-run and --verify", full, dry_run, verify)
    check_metrics_file(metrics_file, is_whole=queue is None and not dry_run)
    found: RepairReport | VerifyReport
    what = f"{'Verifying' if verify else 'Repairing'} {queue or 'all queues'}"
    with connection.open() as client, shell.working(what) as work:
        told = work.on_progress
        found = (
            client.verify(queue, on_progress=told)
            if verify
            else client.repair(queue, full=full, dry_run=dry_run, on_progress=told)
        )
    write_metrics(metrics_file, found)
    if show(found, out):
        raise typer.Exit(shell.FAILED)


def only_one(flags: str, *are_given: bool) -> None:
    """Refuse flags that exclude each other.

    Raises:
        UsageError: More than one of them is given.
    """
    if sum(are_given) > 1:
        raise UsageError(f"{flags} exclude each other. Give only one of them")


def check_metrics_file(path: str | None, *, is_whole: bool) -> None:
    """Refuse a file that cannot be written, or that would say more than what was done.

    Raises:
        UsageError: It cannot be written, or the pass does not repair or verify all queues.
    """
    if path is not None and not is_whole:
        raise UsageError(
            "--metrics-file tells of passes over all queues. Leave it out, or leave out the queue "
            "and --dry-run"
        )
    check_report_file(path, "--metrics-file")


def show(
    found: RepairReport | VerifyReport,
    out: shell.Out,
    *,
    tell: Callable[[str], None] = shell.print_problem,
) -> bool:
    """Print a report, and tell of problems; return whether a person must look."""
    report = found.to_dict()
    if "findings" in report:
        problems = [
            ": ".join([one["kind"], *_where(one), one["what"]]) for one in report["findings"]
        ] + report["problems"]
    else:
        problems = [
            f"{one['queue']}: {problem}" for one in report["queues"] for problem in one["problems"]
        ]
    if out.as_json:
        out.result(report)
    elif "findings" in report:
        out.result(report | {name: len(report[name]) for name in ("findings", "problems")})
    else:
        _show_queues(report)
    for problem in problems:
        tell(problem)
    return bool(problems)


def changed(found: RepairReport) -> str:
    """Return what a pass over many queues changed, as one line; empty if it changed nothing."""
    report, told = found.to_dict(), list[str]()
    for one in report["queues"]:
        counts = [f"{k} {v}" for k, v in one.items() if v and isinstance(v, int)]
        told += [f"queue {one['queue']}: {', '.join(counts)}"] if counts else []
    told += [f"finished the deletion of queue {name}" for name in report["deletions_finished"]]
    told += [f"{key} {report[key]}" for key in ("sinks_swept", "swept_lanes") if report[key]]
    return "; ".join(told)


def _where(finding: dict[str, Any]) -> list[str]:
    """The queue, lane and bucket of a finding, as far as they are known."""
    places = [f"queue {finding['queue']!r}"] if finding["queue"] else []
    if finding["lane"] is not None:
        places.append(f"lane {finding['lane']}")
    if finding["bucket"] is not None:
        places.append(f"bucket {finding['bucket']}")
    return [", ".join(places)] if places else []


def is_for_a_program() -> bool:
    """Whether standard output is not a terminal."""
    return not sys.stdout.isatty()


def _show_queues(report: dict[str, Any]) -> None:
    """Print a row per queue: for a person what was done, for a program every column, zeros too."""
    found = report["queues"]
    titles = [name for name in found[0] if name != "problems"] if found else ["queue"]
    if not is_for_a_program():
        titles = [name for name in titles if any(one[name] for one in found)]
        if len(titles) <= 1:
            shell.say("repair: there was nothing to do")
    shell.print_rows(titles, [[one[name] for name in titles] for one in found])
    for name in report["deletions_finished"]:
        shell.say(f"finished the deletion of queue {name}")
    if count := report["sinks_swept"]:
        shell.say(f"removed transactions of deleted queues: {count}")
    if count := report["swept_lanes"]:
        shell.say(f"swept deleted queues that something was written to late: {count}")
