"""Make commands of functions, and read what they are given.

A function's arguments, its docstring and the options table say what its flags are. An option comes
from a flag, then from a ``CASSIEQ_*`` variable, then from a TOML file, then from its default. This
uses tomllib and the options table, not pydantic-settings, which does not say where a value came
from, overlooks misspelt variables, and costs each command 0.1 s (ADR 28).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import platformdirs
import typer
from typer.models import OptionInfo, ParameterInfo

from cassieq_spark.client import Client
from cassieq_spark.embedded import daemon
from cassieq_spark.embedded.daemon import DaemonState
from cassieq_spark.embedded.machine import of_user
from cassieq_spark.errors import EmbeddedFailed, OptionInvalid, OptionUnknown
from cassieq_spark.options import OPTIONS, Option, Scope, Spelling, parse_connection, values
from cassieq_spark.options.option import named_in, parts_of, snake_case
from cassieq_spark.options.parse import DEFAULT, FILE, GIVEN, in_force, unknown
from cassieq_spark.options.values import HIDDEN, show_seconds

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


def checked(option: Option, name: str, given: Any) -> Any:
    """The checked value of an option; a time may be text, though `Client.create_queue` takes none.

    Raises:
        OptionInvalid: It is not allowed; the error calls it by the name.
    """
    if option.unit != "seconds":
        return option.checked(name, given)
    schema = option.values.schema
    return values.seconds(schema["minimum"], schema["maximum"]).checked(name, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of an option and its origin: a line of ``cassieq config``."""

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
    with contextlib.suppress(EmbeddedFailed):  # a user without a home directory has no file there
        paths.append(of_user(platformdirs.user_config_path, otherwise="give --config") / FILE_NAME)
    for path in paths:
        if path.is_file():
            return _read_file(path)
    return File()


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of a command to Cassandra; it connects when `open` is called.

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
            if one.value is not None and one.origin not in (DEFAULT, one.option.variable)
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
        return Client(parse_connection(given, Spelling.SHELL))

    def _setting(self, option: Option) -> Setting:
        value, origin = in_force(option, self.flags, self.file.section("connection"))
        if origin == DEFAULT and option.name == "contactPoints" and (node := _local_node()):
            value, origin = node, "cassieq cassandra start"
        origin = {GIVEN: "flag", FILE: str(self.file.path)}.get(origin, origin)
        return Setting(option=option, value=value, origin=origin)


def _local_node() -> str | None:
    with contextlib.suppress(EmbeddedFailed):  # who has no home directory has started none there
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
            f"configuration file {path} is not TOML: {error}. Correct it"
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
            raise unknown(key, f"[{name}] of {path}", known.values())
        parsed = checked(known[key], f"{key!r} in [{name}] of {path}", value)
        found[key] = parsed if name == "queue" else value  # the parser of a connection reads text
    return found


Command = Callable[..., Any]

CONNECTION: Final = "Connection: --some-name, or the variable CASSIEQ_SOME_NAME"


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags that make one argument of a command together: they stand in its annotation."""

    shown: tuple[inspect.Parameter, ...]
    build: Callable[[dict[str, Any]], object]

    @classmethod
    def of(cls, kind: type) -> Self:
        """The flags that make a value: each of its fields is annotated with one."""
        fields = inspect.signature(kind, eval_str=True).parameters.values()
        return cls(tuple(fields), lambda flags: kind(**flags))


@dataclass(frozen=True, slots=True)
class Seconds:
    """A flag that takes a length of time, such as ``30``, ``500ms`` or ``5m``, in seconds."""

    least: float = 0.0
    most: float = LONGEST_S

    def read(self, name: str, given: str | None) -> float | None:
        """The seconds that the command gets; None if the flag was not given.

        Raises:
            OptionInvalid: It is not a time, or not within the bounds; the error names the flag.
        """
        if given is None:
            return None
        allowed = "seconds, or text such as '500ms', '30s', '5m', '12h', '7d'"
        if self.most < LONGEST_S:
            allowed = f"{show_seconds(self.least)} to {show_seconds(self.most)}"
        elif self.least:
            allowed = f"{show_seconds(self.least)} or more"
        kind = replace(values.seconds(self.least, self.most), allowed=allowed)
        return kind.checked(flag_name(name), given)


Time = Annotated[float | None, Seconds()]


def command(app: typer.Typer, name: str | None = None) -> Callable[[Command], Command]:
    """Make a command of a function, and leave the function as it is.

    Its arguments before ``*`` are arguments in a shell too, and the others are flags. Its docstring
    is the help: the text, what each argument is (``Args:``, or the title of a panel of flags), and
    a line that a user may type (``Example:``). An annotation says what a shell needs besides, such
    as a metavar.
    """

    def add(function: Command) -> Command:
        parts = parts_of(function)
        text, example = parts.pop("").strip(), parts.pop("Example", "").strip()
        meanings = {
            name: (meaning, None if panel == "Args" else panel)
            for panel, part in parts.items()
            for name, meaning in named_in(part).items()
        }
        signature = inspect.signature(function, eval_str=True)
        built: dict[str, Flags] = {}
        times: dict[str, Seconds] = {}
        shown: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            for note in _notes_of(one):
                if isinstance(note, Flags):
                    built[one.name] = note
                elif isinstance(note, Seconds):
                    times[one.name] = note
            if one.name not in built:
                shown.append(_explained(one, *meanings.get(one.name, (None, None))))
        shown += [flag for made in reversed(built.values()) for flag in made.shown]

        @functools.wraps(function)
        def outer(**given: Any) -> Any:
            given |= {name: time.read(name, given[name]) for name, time in times.items()}
            for key, made in built.items():
                own = {flag.name: given.pop(flag.name) for flag in made.shown}
                given[key] = made.build(own)
            return function(**given)

        # typer asks a function for its signature, so flags without a def need this one.
        outer.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # functions have it, mypy does not know
        outer.__annotations__ = {one.name: one.annotation for one in shown}
        app.command(name, help=text, epilog=example and f"Example: {example}")(outer)
        return function

    return add


def _notes_of(one: inspect.Parameter) -> tuple[object, ...]:
    return getattr(one.annotation, "__metadata__", ())


def _explained(one: inspect.Parameter, meaning: str | None, panel: str | None) -> inspect.Parameter:
    """A parameter with all that typer wants to know."""
    if any(isinstance(note, Seconds) for note in _notes_of(one)):
        default = None if one.default is None else show_seconds(one.default)
        as_text = Annotated[str | None, typer.Option(metavar="TIME")]
        one = one.replace(annotation=as_text, default=default)
    notes = [copy(note) for note in _notes_of(one) if isinstance(note, ParameterInfo)]
    is_flag = one.kind is inspect.Parameter.KEYWORD_ONLY
    info: Any = notes[0] if notes else typer.Option() if is_flag else typer.Argument()
    info.help = info.help or meaning
    info.rich_help_panel = info.rich_help_panel or panel
    if not is_flag:
        info.metavar = info.metavar or one.name.upper()
    elif one.default is False and isinstance(info, OptionInfo) and info.default is ...:
        info.param_decls = (flag_name(one.name),)  # without --no-...
    kind = getattr(one.annotation, "__origin__", one.annotation) if notes else one.annotation
    return keyword(one.name, Annotated[kind, info], default=one.default)


def keyword(name: str, annotation: Any, *, default: Any = None) -> inspect.Parameter:
    """A parameter that typer makes a flag of."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def flag_name(parameter: str) -> str:
    """``ssl_ca_file`` is ``--ssl-ca-file``."""
    return f"--{parameter.replace('_', '-')}"


def flag_of(option: Option) -> str:
    """``sslCaFile`` is ``--ssl-ca-file``, as its variable is CASSIEQ_SSL_CA_FILE."""
    return Spelling.SHELL.of(option.name)


_QUOTED: Final = re.compile(f"`({'|'.join(option.name for option in OPTIONS)})`")


def _flag(option: Option, panel: str) -> inspect.Parameter:
    sample = option.example if option.default is None else option.default
    is_time = option.unit == "seconds"
    kind: Any = type(sample) if isinstance(sample, int | float) and not is_time else str
    name = flag_of(option)
    text = [_QUOTED.sub(lambda found: Spelling.SHELL.of(found[1]), option.doc)]
    if option.default is not None:
        shown = show_seconds(option.default) if is_time else str(option.default).lower()
        text.append(f"Default: {shown}.")
    info = typer.Option(
        f"{name}/--no{name[1:]}" if kind is bool else name,
        help=" ".join(text),
        metavar="TIME" if is_time else None,
        rich_help_panel=panel,
        show_default=False,
    )
    return keyword(snake_case(option.name), Annotated[kind | None, info])


# Secrets have no flag: everybody on a machine can read its processes' arguments.
_CONNECTION_OPTIONS: Final = [one for one in options_of("connection") if not one.is_secret]

_CONFIG: Final = keyword(
    "config_file",
    Annotated[
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


def connection_given(flags: dict[str, Any]) -> dict[str, Any]:
    """The options that flags gave, None for each that was not given."""
    return {one.name: flags.get(snake_case(one.name)) for one in _CONNECTION_OPTIONS}


_CONNECTION_FLAGS: Final = tuple(_flag(option, CONNECTION) for option in _CONNECTION_OPTIONS)

Connected = Annotated[
    Connection,
    Flags(
        (*_CONNECTION_FLAGS, _CONFIG),
        lambda flags: Connection(connection_given(flags), find_file(flags[_CONFIG.name])),
    ),
]
"""The connection of a command to Cassandra."""

ConnectionGiven = Annotated[dict[str, Any], Flags(_CONNECTION_FLAGS, connection_given)]
"""The connection as a job's flags give it; jobs read no file."""


def settings_flags(*, without: Iterable[str] = ()) -> Flags:
    """A queue's settings; a command gets those that were given."""
    options = [option for option in options_of("queue") if option.name not in without]

    def build(flags: dict[str, Any]) -> dict[str, Any]:
        return {
            option.name: checked(option, flag_of(option), value)
            for option in options
            if (value := flags[snake_case(option.name)]) is not None
        }

    return Flags(tuple(_flag(option, "Settings") for option in options), build)


CONNECT_S: Final = 1.0
"""The time within which a node must answer: a prompt that stands still is worse than no names."""

PATIENCE_S: Final = 2.0
"""The time that the shell waits for all of it."""


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that begin so, of the cluster that the flags, the variables or the file name.

    Whatever goes wrong, there are no names, and nothing is printed: somebody is typing.
    """
    with contextlib.suppress(Exception), _silence(), _at_most(PATIENCE_S):
        flags = {**connection_given(ctx.params), "connectTimeout": CONNECT_S}
        connection = Connection(flags, find_file(ctx.params.get(_CONFIG.name)))
        if connection.value("username") and connection.value("password") is None:
            return []  # it would have to be asked for
        with connection.open() as client:
            return [one.name for one in client.queues() if one.name.startswith(incomplete)]
    return []


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The driver logs what it could not reach."""
    logging.disable()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so long, if this is a process of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
