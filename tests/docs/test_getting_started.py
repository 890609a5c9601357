"""Getting started: its examples run in order, in Python and in the shell, and print the same."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store import store
from tests.fixtures.commands import CASSIEQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

KEYSPACE = "cassieq_getting_started"
BLOCK = re.compile(r"```(python|console)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def _disconnected() -> Iterator[None]:
    yield
    store.close_shared()


@pytest.mark.usefixtures("spark", "_disconnected")
def test_getting_started_prints_what_it_says(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (pytestconfig.rootpath / "docs" / "getting-started.md").read_text("utf-8")
    for old, new in {
        '"127.0.0.1:9042"': f'"{cassandra.contact_points}", keyspace="{KEYSPACE}"',
        '"order-files"': f'"{tmp_path}/order-files"',
        '"checkpoints/': f'"{tmp_path}/checkpoints/',
    }.items():
        assert old in text
        text = text.replace(old, new)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CASSIEQ_")},
        "CASSIEQ_CONTACT_POINTS": cassandra.contact_points,
        "CASSIEQ_KEYSPACE": KEYSPACE,
        "PATH": f"{CASSIEQ.parent}{os.pathsep}{os.environ['PATH']}",
    }
    names: dict[str, object] = {}
    blocks = BLOCK.findall(text)
    assert len(blocks) > 8

    for language, code, expected in blocks:
        if language == "console":
            run_commands(code, environment)
            continue
        exec(compile(code, "getting-started.md", "exec"), names)  # noqa: S102 - our own documents
        assert (code, expected.strip()) == (code, capsys.readouterr().out.strip())


def run_commands(block: str, environment: Mapping[str, str]) -> None:
    """Each command prints what is below it, up to ids."""
    for command, expected in COMMAND.findall(block):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )
        assert (command, UUID.sub("<uuid>", expected)) == (
            command,
            UUID.sub("<uuid>", done.stdout),
        )
