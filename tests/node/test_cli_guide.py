"""The guides to the command line: examples run as they stand, and no command is left out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from cassieq_spark.cli.app import app
from cassieq_spark.cli.shell import EXIT_CODES
from tests.fixtures.commands import CASSIEQ

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
TEXT = "".join((GUIDES / name).read_text(encoding="utf-8") for name in ("cli.md", "cli-operate.md"))
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)

#: What is another one in each run.
VARYING = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<uuid>",
    r"\bA[A-Za-z0-9_-]{70}": "<receipt>",
    r"\d{4}-\d\d-\d\dT[0-9:.]+\+00:00": "<time>",
    r'("p\d+\w*"|"max"|"\w*seconds"|"\w+_per_s"|"oldest_age_s"|"applied_lwts"): [\d.]+': r"\1: <n>",
    r"(_ms\.\w+|seconds|messages_per_s) +[\d,.]+": r"\1 <n>",
    r'"buckets": \{[^}]*\}': '"buckets": {}',
    r"(swept\norders( +\d+){11})( +\d+){3}": r"\1 <n>",
    r"\d{4}-\d\d-\d\dT[\d:.]+Z WARNING": "<time> WARNING",
    r" +": " ",
}


def masked(text: str) -> str:
    for pattern, mask in VARYING.items():
        text = re.sub(pattern, mask, text)
    return text


def examples() -> list[tuple[str, str]]:
    """(command, what it prints), in the order of the two pages."""
    found = []
    for block in BLOCK.findall(TEXT):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def test_every_example_prints_what_the_guide_says(
    cassandra: EmbeddedCassandra, tmp_path: Path
) -> None:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CASSIEQ_")},
        "CASSIEQ_CONTACT_POINTS": cassandra.contact_points,
        "PATH": f"{CASSIEQ.parent}{os.pathsep}{os.environ['PATH']}",
    }
    expected = examples()
    assert len(expected) > 20

    said, done_instead = [], []
    for command, printed in expected:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )
        if masked(printed) != masked(done.stdout):
            said.append((command, masked(printed)))
            done_instead.append((command, masked(done.stdout)))

    assert said == done_instead


def test_every_command_is_in_the_guide() -> None:
    group = typer.main.get_command(app)
    names = dict(group.commands)  # type: ignore[attr-defined]  # a group has commands
    names |= names.pop("dead").commands
    names |= names.pop("queue").commands
    names |= names.pop("cassandra").commands

    assert len(names) > 15
    assert [] == [name for name in names if not re.search(rf"\b{name}\b", TEXT)]


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_in_the_guide_as_the_code_has_it(code: int) -> None:
    assert f"\n| {int(code)} | {EXIT_CODES[code]} |\n" in TEXT
