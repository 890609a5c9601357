"""Make flags from the options table, for the commands that take those options."""

from __future__ import annotations

import argparse
import functools
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cassieq_spark.cli.settings import (
    FILE_NAME,
    Connection,
    find_file,
    options_of,
    queue_setting,
)
from cassieq_spark.options.values import show_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cassieq_spark.options import Option

CONNECTION: Final = "Connection: --some-name, or the variable CASSIEQ_SOME_NAME"

CONFIG_FLAG: Final = inspect.Parameter(
    "config_file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            help=f"TOML file with options. Default: ./{FILE_NAME}, else the one in the user's "
            "configuration directory.",
            rich_help_panel=CONNECTION,
            show_default=False,
        ),
    ],
)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection's flags to a command, which gets them as ``connection``.

    Secrets have no flag: everybody on a machine can read its processes' arguments.
    """

    def build(given: dict[str, Any]) -> Connection:
        return Connection(_connection_of(given), find_file(given[CONFIG_FLAG.name]))

    added = [_flag(option, CONNECTION) for option in _connection_options()]
    return with_parameters(command, "connection", [*added, CONFIG_FLAG], build)


def add_connection(job: argparse.ArgumentParser) -> None:
    """Add the same flags to a job, which is run by ``spark-submit`` and not by ``cassieq``."""
    group = job.add_argument_group(CONNECTION)
    for option in _connection_options():
        flag = flag_of(option)
        is_switch = isinstance(option.default, bool)
        kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if is_switch else {}
        group.add_argument(flag, help=_help(option), **kind)


def connection_of(job: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a job's flags gave, None where a flag was not given."""
    return _connection_of(vars(job))


def with_queue_settings(*, without: Iterable[str] = ()) -> Callable[[Any], Callable[..., None]]:
    """Add a queue's settings to a command, which gets those that were given as ``settings``."""
    options = [option for option in options_of("queue") if option.name not in without]

    def build(given: dict[str, Any]) -> dict[str, Any]:
        return {
            option.name: queue_setting(option, value, flag_of(option))
            for option in options
            if (value := given[_parameter(option)]) is not None
        }

    def add(command: Callable[..., None]) -> Callable[..., None]:
        return with_parameters(
            command, "settings", [_flag(option, "Settings") for option in options], build
        )

    return add


def flag_of(option: Option) -> str:
    """``sslCaFile`` is ``--ssl-ca-file``, as its variable is CASSIEQ_SSL_CA_FILE."""
    return "--" + option.variable.partition("_")[2].lower().replace("_", "-")


def _shell_name(option: Option) -> str:
    return option.variable if option.is_secret else flag_of(option)


SHELL_NAMES: Final = {
    option.name: _shell_name(option)
    for section in ("connection", "queue")
    for option in options_of(section)
}
"""The flag of each option that commands take; secrets have a variable only."""

_QUOTED: Final = re.compile(r"`(\w+)`")


def _connection_options() -> list[Option]:
    return [option for option in options_of("connection") if not option.is_secret]


def _connection_of(given: Mapping[str, Any]) -> dict[str, Any]:
    return {option.name: given[_parameter(option)] for option in _connection_options()}


def _parameter(option: Option) -> str:
    return flag_of(option)[2:].replace("-", "_")


def _flag(option: Option, panel: str) -> inspect.Parameter:
    sample = option.example if option.default is None else option.default
    is_time = option.unit == "seconds"
    kind: Any = type(sample) if isinstance(sample, int | float) and not is_time else str
    name = flag_of(option)
    info = typer.Option(
        f"{name}/--no{name[1:]}" if kind is bool else name,
        help=_help(option),
        metavar="TIME" if is_time else None,
        rich_help_panel=panel,
        show_default=False,
    )
    return inspect.Parameter(
        _parameter(option),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, info],
    )


def _help(option: Option) -> str:
    text = [_QUOTED.sub(lambda found: SHELL_NAMES.get(found[1], found[0]), option.doc)]
    if option.default is not None:
        is_time = option.unit == "seconds"
        shown = show_seconds(option.default) if is_time else str(option.default).lower()
        text.append(f"Default: {shown}.")
    return " ".join(text)


def with_parameters(
    command: Callable[..., None],
    name: str,
    added: list[inspect.Parameter],
    build: Callable[[dict[str, Any]], object],
) -> Callable[..., None]:
    """A command that has the added parameters instead of one, which is built from them."""

    @functools.wraps(command)
    def outer(**given: Any) -> None:
        own = {one.name: given.pop(one.name) for one in added}
        command(**given, **{name: build(own)})

    # typer asks a function for its signature, so flags without a def need this one.
    signature = inspect.signature(command, eval_str=True)
    kept = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in signature.parameters.values()
        if one.name != name
    ]
    outer.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]  # functions have it, mypy does not know
    outer.__annotations__ = {one.name: one.annotation for one in [*kept, *added]}
    return outer
