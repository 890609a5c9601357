"""Read a command's options: flags, then ``CASSIEQ_*`` variables, then a TOML file, then defaults.

It uses tomllib and the options table, not pydantic-settings, which does not say where a value came
from, overlooks misspelt variables, and costs each command 0.1 s (ADR 28).
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import platformdirs
import typer

from cassieq_spark.client import Client
from cassieq_spark.embedded import daemon
from cassieq_spark.embedded.daemon import DaemonState
from cassieq_spark.embedded.machine import of_user
from cassieq_spark.errors import EmbeddedFailed, OptionInvalid, OptionUnknown
from cassieq_spark.options import OPTIONS, Option, Scope, parse_connection, values
from cassieq_spark.options.option import did_you_mean
from cassieq_spark.options.values import HIDDEN

FILE_NAME: Final = "cassieq.toml"

SECTIONS: Final[dict[str, frozenset[Scope]]] = {
    "connection": frozenset({Scope.CONNECTION}),
    "source": frozenset({Scope.SOURCE, Scope.READ}),
    "sink": frozenset({Scope.SINK}),
    "queue": frozenset({Scope.QUEUE}),
}
"""The sections of the file."""

LONGEST_S: Final = 36_500 * 86_400.0
"""The longest time that is read as one."""


def options_of(section: str) -> list[Option]:
    """The options that a section of the file may set; common ones are in ``connection`` only."""
    return [
        option
        for option in OPTIONS
        if option.scopes & SECTIONS[section]
        and option.has_variable
        and (section == "connection" or Scope.CONNECTION not in option.scopes)
    ]


def seconds(name: str, given: str, least: float = 0.0, most: float = LONGEST_S) -> float:
    """Parse the time of a flag: ``30``, ``500ms``, ``5m``.

    Raises:
        OptionInvalid: It is not a time, or not within the bounds; the error names the flag.
    """
    allowed = "seconds, or text such as '500ms', '30s', '5m', '12h', '7d'"
    if most < LONGEST_S:
        allowed = f"{values.show_seconds(least)} to {values.show_seconds(most)}"
    elif least:
        allowed = f"{values.show_seconds(least)} or more"
    return replace(values.seconds(least, most), allowed=allowed).checked(name, given)


def queue_setting(option: Option, given: Any, name: str) -> Any:
    """The value for `Client.create_queue`: times are numbers there, and text in a terminal."""
    return seconds(name, given) if option.unit == "seconds" and isinstance(given, str) else given


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option's value and where it came from: a line of ``cassieq config``."""

    option: Option
    value: Any
    origin: str

    @property
    def shown(self) -> str | None:
        """The value for people and logs."""
        if self.value is None:
            return None
        return HIDDEN if self.option.is_secret else str(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A configuration file that was read and checked; without a path there is none."""

    path: Path | None = None
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def section(self, name: str) -> Mapping[str, Any]:
        """The values of a section, none if there is no such section."""
        return self.sections.get(name, {})


def find_file(given: Path | None) -> File:
    """Read the file that was named, else ``./cassieq.toml``, else the one in the user's directory.

    Only the first that exists is read: so all values in force are in one place.

    Raises:
        OptionInvalid: It cannot be read, is not TOML, or has a value that is not allowed.
        OptionUnknown: It has an unknown section or option.
    """
    if given is not None:
        return _read_file(given)
    paths = [Path(FILE_NAME)]
    with suppress(EmbeddedFailed):  # a user without a home directory has no file there
        paths.append(of_user(platformdirs.user_config_path, otherwise="give --config") / FILE_NAME)
    for path in paths:
        if path.is_file():
            return _read_file(path)
    return File()


@dataclass(frozen=True, slots=True)
class Connection:
    """How a command reaches Cassandra; it connects when `open` is called.

    Attributes:
        flags: By the options' names; None for each that was not given.
    """

    flags: Mapping[str, Any]
    file: File

    def settings(self) -> list[Setting]:
        """Every option of the connection, with where it comes from; nothing is checked."""
        return [self._setting(option) for option in options_of("connection")]

    def value(self, name: str) -> Any:
        """The value of one option, as it was given."""
        return next(one.value for one in self.settings() if one.option.name == name)

    def open(self) -> Client:
        """Connect.

        Raises:
            OptionInvalid: There are no contact points, or a value is not allowed.
            StoreError: As `cassieq_spark.connect`.
        """
        # A variable is left to the parser: its error then names the variable.
        settings = self.settings()
        known = {one.option.name: one.value for one in settings}
        given = {
            one.option.name: one.value
            for one in settings
            if one.value is not None and one.origin not in ("default", one.option.variable)
        }
        if known["contactPoints"] is None:
            raise OptionInvalid(
                "no contact points: it is not known which Cassandra to connect to. Give "
                "--contact-points host:port, set CASSIEQ_CONTACT_POINTS, write contactPoints "
                f"into [connection] of {FILE_NAME}, or start a local node: cassieq cassandra start"
            )
        if known["username"] and known["password"] is None and sys.stdin.isatty():
            given["password"] = typer.prompt(
                f"Password of {known['username']}", hide_input=True, err=True
            )
        return Client(parse_connection(given))

    def _setting(self, option: Option) -> Setting:
        if (value := self.flags.get(option.name)) is not None:
            return Setting(option=option, value=value, origin="flag")
        if option.variable in os.environ:
            return Setting(option=option, value=os.environ[option.variable], origin=option.variable)
        if (value := self.file.section("connection").get(option.name)) is not None:
            return Setting(option=option, value=value, origin=str(self.file.path))
        if option.name == "contactPoints" and (node := _local_node()) is not None:
            return Setting(option=option, value=node, origin="cassieq cassandra start")
        return Setting(option=option, value=option.default, origin="default")


def _local_node() -> str | None:
    with suppress(EmbeddedFailed):  # a user without a home directory has started none there
        found = daemon.status(daemon.default_data_dir())
        return found.contact_points if found.state is DaemonState.UP else None
    return None


def _read_file(path: Path) -> File:
    try:
        # Editors on Windows begin a file with a byte order mark; TOML has none.
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise OptionInvalid(
            f"configuration file {path} cannot be read: {error.strerror}. Name another file with "
            "--config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionInvalid(
            f"configuration file {path} is not valid TOML: {error}. Correct it"
        ) from error
    return File(
        path=path,
        sections={name: _section(path, name, content) for name, content in document.items()},
    )


def _section(path: Path, name: str, content: object) -> dict[str, Any]:
    if name not in SECTIONS or not isinstance(content, dict):
        raise OptionUnknown(
            f"configuration file {path} has {name!r} at its top level, which may only have the "
            f"sections {', '.join(f'[{one}]' for one in SECTIONS)}. Move it into one of them"
        )
    known = {option.name: option for option in options_of(name)}
    found = {}
    for key, value in content.items():
        if key not in known:
            hint = did_you_mean(key, known) or f" Its options are: {', '.join(known)}"
            raise OptionUnknown(f"{key!r} in [{name}] of {path} is not an option.{hint}")
        option, where = known[key], f"{key!r} in [{name}] of {path}"
        found[key] = queue_setting(option, value, where) if name == "queue" else value
        option.checked(where, found[key], given=value)
    return found
