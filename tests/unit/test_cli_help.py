"""The help of every command: it says what the command does, and has an example that parses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
import typer

from cassieq_spark.cli.app import app

EXAMPLE = "Example: "


def commands(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)  # type: ignore[arg-type]  # typer's groups
        else:
            yield (*above, name), command


ROOT: click.Group = typer.main.get_command(app)  # type: ignore[assignment]  # it has groups
ALL = dict(commands(ROOT))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_help_of_a_command_has_an_example_of_it_that_parses(words: tuple[str, ...]) -> None:
    command = ALL[words]
    epilog = command.epilog or ""
    assert epilog.startswith(EXAMPLE), f"write an example into the docstring of {' '.join(words)}"

    program, *given = shlex.split(epilog.removeprefix(EXAMPLE))

    assert ("cassieq", list(words)) == (program, given[: len(words)])
    with command.make_context(words[-1], given[len(words) :]):
        pass  # an unknown flag, or a missing argument, is an error


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_help_of_a_command_begins_with_a_sentence_and_explains_each_flag(
    words: tuple[str, ...],
) -> None:
    command = ALL[words]
    first = (command.help or "").splitlines()[0]
    assert first[:1].isupper()
    assert first.count("``") == 0
    unexplained = [one.name for one in command.params if not getattr(one, "help", None)]
    assert [] == unexplained
