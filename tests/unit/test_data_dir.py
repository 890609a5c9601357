"""A data directory that cannot be written is one line, before anything is fetched or started."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cassieq_spark.cli.app import app


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a directory that nobody may write to")
def test_a_directory_that_cannot_be_written_is_one_line() -> None:
    found = CliRunner().invoke(app, ["cassandra", "start", "--data-dir", "/proc/cassieq"])

    assert 1 == found.exit_code
    (line,) = found.stderr.splitlines()
    assert line.startswith("[cassieq:embedded_failed] the data directory /proc/cassieq cannot be ")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """The system refuses to let a file grow, as it does on a full disk, with another number."""
    root = tmp_path / "full"
    found = subprocess.run(
        [
            *(sys.executable, "-c", "from cassieq_spark.cli import main; main()"),
            *("cassandra", "start", "--data-dir", root, "--port", "19042"),
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )

    assert 1 == found.returncode
    *steps, line = found.stderr.splitlines()
    assert line.startswith(f"[cassieq:embedded_failed] the data directory {root} cannot be written")
    assert all(step.startswith("Starting Cassandra") for step in steps), found.stderr
