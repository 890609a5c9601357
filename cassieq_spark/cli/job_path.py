"""``cassieq job-path`` says where the package's jobs are, for spark-submit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cassieq_spark.cli.exits import exit_codes
from cassieq_spark.cli.output import say
from cassieq_spark.errors import OptionInvalid


def job_path(
    job: Annotated[str, typer.Argument(metavar="JOB", help="repair, redrive or to_files.")],
) -> None:
    """Print the file of a job of this package: spark-submit "$(cassieq job-path repair)" --once."""
    with exit_codes():
        jobs = Path(__file__).resolve().parents[1] / "jobs"
        known = sorted(path.stem for path in jobs.glob("[a-z]*.py"))
        if job not in known:
            raise OptionInvalid(f"there is no job {job!r}. The jobs are: {', '.join(known)}")
        say(str(jobs / f"{job}.py"))
