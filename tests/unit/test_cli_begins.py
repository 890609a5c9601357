"""A command that is interrupted while it begins, or whose help nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import cassieq_spark
from tests.fixtures.commands import CASSIEQ, end


def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [CASSIEQ, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("module", ["typer", "rich.console", "cassandra.cluster"])
def test_ctrl_c_while_it_is_imported_ends_it_without_a_word(module: str) -> None:
    process = start("config", PYTHONPROFILEIMPORTTIME="1")
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().rpartition("|")[2].strip() == module:
            break
    else:
        pytest.fail(f"{module} is not imported: choose another module")

    process.send_signal(signal.SIGINT)
    ended = end(process)

    assert -signal.SIGINT == ended.code
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("words", ["", "put", "queue", "queue create"])
def test_help_that_nobody_reads_has_the_exit_code_of_a_broken_pipe(words: str) -> None:
    process = start(*words.split(), "--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as err:
        said = err.read()

    assert (141, b"") == (process.wait(120), said)


def test_python_runs_the_package_as_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "cassieq_spark", "--version"], capture_output=True, check=True
    )
    assert cassieq_spark.__version__ == found.stdout.decode().strip()
