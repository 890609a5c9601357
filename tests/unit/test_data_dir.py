"""A data directory that cannot be written, or is too full, is one line before anything starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cassieq_spark.cli.app import app
from cassieq_spark.embedded import machine
from cassieq_spark.embedded.config import NEEDED_BYTES
from cassieq_spark.embedded.machine import check_space, size_of
from cassieq_spark.embedded.software import CASSANDRA
from cassieq_spark.errors import DiskFull

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the free space of every disk: no test may fill a real one."""

    def set_free(size: int) -> None:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(1 << 40, 0, size))

    return set_free


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


def test_a_disk_with_too_little_space_is_named_with_both_figures(
    tmp_path: Path, free: Callable[[int], None]
) -> None:
    free(99_999_999)
    root = tmp_path / "not" / "there"

    check_space(root, 99_999_999, what="it")
    with pytest.raises(DiskFull) as failure:
        check_space(root, 100_000_000, what="a Cassandra node")

    assert (
        f"[cassieq:disk_full] the disk of {root} has 99 MB free, but a Cassandra node needs "
        "100 MB. Free space there, or name another directory"
    ) == str(failure.value)


def test_a_node_is_not_started_on_a_disk_that_it_would_fill(
    tmp_path: Path, free: Callable[[int], None]
) -> None:
    free(NEEDED_BYTES - 1)
    found = CliRunner().invoke(app, ["cassandra", "start", "--data-dir", str(tmp_path / "data")])

    assert (1, "") == (found.exit_code, found.stdout)
    (line,) = found.stderr.splitlines()
    assert line.startswith(f"[cassieq:disk_full] the disk of {tmp_path / 'data'} has 1,073 MB free")


def test_what_a_node_has_already_written_counts_as_its_space(
    tmp_path: Path, free: Callable[[int], None]
) -> None:
    segments = tmp_path / "data" / "node1" / "commitlog"
    segments.mkdir(parents=True)
    (segments / "one.log").write_bytes(b"x" * 5_000_000)
    free(NEEDED_BYTES - 6_000_000)
    found = CliRunner().invoke(app, ["cassandra", "start", "--data-dir", str(tmp_path / "data")])

    assert 5_000_000 == size_of(segments)
    assert "a Cassandra node needs 1,069 MB" in found.stderr


def test_jars_are_not_fetched_where_they_do_not_fit(
    tmp_path: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    free(2 * CASSANDRA.megabytes * 10**6 - 1)
    found = CliRunner().invoke(app, ["cassandra", "fetch"])

    assert 1 == found.exit_code
    assert "[cassieq:disk_full]" in found.stderr.splitlines()[-1]
    assert [] == list((tmp_path / "cache").glob("fetch-*"))
