"""Errors as a shell shows them: commands and flags instead of Python's calls and options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cassieq_spark.cli.app import app
from cassieq_spark.cli.shell import in_shell

PACKAGE = Path(__file__).resolve().parents[2] / "cassieq_spark"

CALL = re.compile(r"client\.(?!forget_sink)\w+\(")
"""A call of Python; no command forgets a sink, whose errors only Spark meets."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Create it with client.create_queue('a.b')", "Create it with cassieq queue create a.b"),
        (
            "Open it with client.queue('q'), change it with client.alter_queue('q'), or choose",
            "Show it with: cassieq queue show q, change it with cassieq queue alter q, or choose",
        ),
        (
            "until it has one again: client.alter_queue('q', dead_letter_queue=...)",
            "until it has one again: cassieq queue alter q --dead-letter-queue QUEUE",
        ),
        ("Run client.bootstrap() to finish it", "Run cassieq bootstrap to finish it"),
        (
            "Create them with client.bootstrap(replication=...)",
            "Create them with cassieq bootstrap --replication DATACENTER=N",
        ),
        (
            "If it was created anew, open it again with client.queue(), or restart the query",
            "If it was created anew, run the command again",
        ),
        (
            "Set its dedup_window: client.alter_queue(name, dedup_window=3600)",
            "Set its dedup_window: cassieq queue alter QUEUE --dedup-window 1h",
        ),
        ("or delete it with force=True", "or delete it with --force"),
        ("Look for more with client.verify()", "Look for more with cassieq repair --verify"),
        ("no source queue; name a queue with 'to'", "no source queue; name a queue with --to"),
    ],
)
def test_a_call_of_python_is_the_command_that_does_the_same(text: str, expected: str) -> None:
    assert expected == in_shell(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[cassieq:option_invalid] delay is -1, allowed: a time: seconds or timedelta",
            "[cassieq:option_invalid] --delay is -1, allowed: a time: seconds, or text such as "
            "'30s' or '5m'",
        ),
        ("[cassieq:option_invalid] wait is -1, ", "[cassieq:option_invalid] --wait is -1, "),
        ("[cassieq:option_invalid] to is 'q', ", "[cassieq:option_invalid] --to is 'q', "),
    ],
)
def test_an_argument_is_the_flag(text: str, expected: str) -> None:
    assert expected == in_shell(text)


@pytest.mark.parametrize(
    "text",
    [
        "option 'queue' of the cassieq source is not set",
        "option 'keyspace' of connect() is 'A', allowed",
        "there is no queue 'wait' in keyspace 'username'",
        "the wait is over",
        "option 'unknown' is 3",
    ],
)
def test_all_else_stays_as_it_is(text: str) -> None:
    assert text == in_shell(text)


def test_an_option_that_a_command_refuses_is_named_by_its_flag() -> None:
    flags = ["--contact-points", "127.0.0.1:1", "--keyspace", "A"]
    found = CliRunner().invoke(app, ["queue", "list", *flags])

    assert 2 == found.exit_code
    assert found.stderr.startswith("[cassieq:option_invalid] --keyspace is 'A', allowed: ")


def test_help_names_other_options_as_a_shell_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)  # no line is folded
    text = CliRunner().invoke(app, ["queue", "list", "--help"]).output

    assert "It needs CASSIEQ_PASSWORD." in text
    assert "private key of --ssl-cert-file." in text


def test_no_call_of_python_is_left_in_what_a_shell_may_show() -> None:
    left = [
        f"{path.name}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parts[len(PACKAGE.parts)] not in ("spark", "cli", "errors.py")
        for text in _texts(path)
        if CALL.search(in_shell(text))
    ]
    assert [] == left


def _texts(path: Path) -> list[str]:
    """What a module may say to somebody: its texts without the docstrings, filled in with 'q'."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(_filled_in(part) for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append("" if id(node) in docs | parts else node.value)
    return found


def _filled_in(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "'q'"
