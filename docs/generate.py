"""Writes what the documentation says about options, errors, events and metrics, from the code.

python docs/generate.py            writes docs/reference/, conf/cassieq.toml, a part of README.md,
                                   the pictures of the guides and examples
python docs/generate.py --check    writes nothing; exit code 1 if one of them is not as it would be

It is no plugin of MkDocs: these files are read on a code host and in an editor, too (ADR 28).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import api_names
import flows
import measured
import pictures
import scaled
from cells import table

from cassieq_spark import errors, log, metrics
from cassieq_spark.cli.flags import SECTIONS, options_of
from cassieq_spark.options import OPTIONS, Option, Scope
from cassieq_spark.options.option import snake_case
from cassieq_spark.options.values import show_bytes
from cassieq_spark.repair.report import FINDINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]

WHERE = {
    Scope.CONNECTION: "`connect()`",
    Scope.SOURCE: "`readStream`",
    Scope.READ: "`read`",
    Scope.SINK: "`writeStream`, `write`",
    Scope.QUEUE: "`create_queue()`",
    Scope.SPARK: "Spark's own",
}

TOML_HEAD = """\
# Every option with its default and its meaning. Made by `make docs` from cassieq_spark/options.
# A commented line has no default, or is in [queue]; it shows an example. The command line reads it:
# ./cassieq.toml, or cassieq.toml in the user's configuration directory, or --config FILE; a flag or
# a variable wins over it. [connection] is for every command, [queue] for `cassieq queue create`,
# where times may also be text such as "5m". Uncomment in [queue] only what your queues must have: a
# queue that exists with other values is then refused. [source] and [sink] are checked and list what
# Spark's readers and writers take: as options, or by variables.
"""

OPTIONS_HEAD = """\
The value of an option comes from the arguments; if they do not have it, from the environment
(`contactPoints` is `CASSIEQ_CONTACT_POINTS`); otherwise it is the default. A name or a value that
is not listed here is refused before anything is read or written.

An option is spelt `contactPoints` in Spark, where upper and lower case do not differ, and in
`cassieq.toml`. It is the keyword `contact_points` of `connect()`, `connect_async()`, `settle()`,
`foreach_batch()` and `CassieqListener()`, exactly so, and the flag `--contact-points` of `cassieq`.
Errors name it as you have to write it.

Times are seconds, or text with a unit: `500ms`, `30s`, `5m`, `12h`, `7d`. Sizes are bytes, or text
with a unit of 1,024: `256k`, `32m`.
"""

QUEUE_NOTE = """\
Arguments of Python: numbers and timedelta, no text. They are stored with the queue, so no variable
sets them.
"""

ERRORS_HEAD = """\
The text of every error begins with `[cassieq:<code>]`, so you can read the code even where Spark
passes on only the text. Codes are never renamed. A class of Python beside ours is one of its bases:
`except TimeoutError` catches a `StoreTimeout`. Python's `TimeoutError` and `ConnectionError` are
also `OSError`s: handle both before errors of the operating system. *Again* says whether the same
call may succeed later by itself.
"""

EVENTS_HEAD = """\
Loggers are `cassieq_spark.<layer>` of Python's `logging`. A record has the name in its attribute
`event` and the fields in `fields`; its text is both. Names are never changed.

While nodes are away, a program gets one line a second of each kind, from our loggers and from the
driver's `cassandra.cluster`, `cassandra.connection` and `cassandra.pool`. The next line says how
many were left out: `left_out=63`. These are filters on the loggers, set when a client is opened;
levels and handlers stay yours. A logger whose level is DEBUG leaves out nothing.
"""

METRICS_HEAD = """\
A gateway and `cassieq exporter` export all of these to Prometheus, see
[watching](../operations/metrics.md). Names there begin with `cassieq_`.

## Of one process

Counters of one Python process since it began, also by `cassieq_spark.metrics.snapshot()`. Spark's
planner and each of its workers are processes of their own.
"""

OF_QUEUES_HEAD = """\
The leader counts all queues of its data centre from their tables. No other process exports these
metrics, so a sum counts nothing twice.
"""

OF_SCANS_HEAD = """\
Every process exports `scan_leader`. Only the leader exports the others.
"""

OF_PASSES_HEAD = """\
A gateway that repairs exports these. `cassieq repair` and `jobs/repair.py` write them into the file
that `--metrics-file` names.
"""

OF_GATEWAYS_HEAD = """\
Each gateway exports its own.
"""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    is_check = parser.parse_args(arguments).check
    stale = {path: text for path, text in pages(root).items() if _read(path) != text}
    for path, text in stale.items():
        name = path.relative_to(root)
        if is_check:
            print(f"{name} differs from what the code says; run: make docs", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if is_check and stale else 0


def pages(root: Path) -> dict[Path, str]:
    """Each generated file with its text; of the README, the whole with its numbers renewed."""
    reference = root / "docs" / "reference"
    found = {
        reference / "options.md": options_page(),
        reference / "errors.md": errors_page(),
        root / "docs" / "guides" / "lanes.svg": pictures.lanes(),
        reference / "events.md": events_page(),
        reference / "metrics.md": metrics_page(),
        root / "conf" / "cassieq.toml": toml(),
    }
    found |= {root / path: flows.draw(flow) for path, flow in flows.FLOWS.items()}
    readme, benchmarks = root / "README.md", root / "docs" / "benchmarks.md"
    if readme.exists():
        text = _read(readme) or ""
        found[readme] = _between_markers(readme, text, "kafka", measured.kafka_table(root))
    source = root / "docs" / "guides" / "source.md"
    if source.exists():
        found[source] = _between_markers(source, _read(source) or "", "options", source_table())
    api = reference / "api.md"
    if api.exists():
        text = _read(api) or ""
        found[api] = _between_markers(api, text, "names", api_names.names_table(text))
    repair = root / "docs" / "operations" / "repair.md"
    if repair.exists():
        rows = [[f"`{kind}`", meaning] for kind, meaning in FINDINGS.items()]
        findings = table(["Kind", "Meaning"], rows)
        found[repair] = _between_markers(repair, _read(repair) or "", "findings", findings)
    proxy = root / "docs" / "operations" / "proxy.md"
    if proxy.exists():
        nginx = (root / "conf" / "nginx" / "cassieq.conf").read_text("utf-8")
        text = f"```nginx\n{nginx}```\n"
        found[proxy] = _between_markers(proxy, _read(proxy) or "", "nginx", text)
    if benchmarks.exists():
        text = _read(benchmarks) or ""
        for marker, part in measured.pages(root).items():
            text = _between_markers(benchmarks, text, marker, part)
        found[benchmarks] = text
    scale = root / "docs" / "scale.md"
    if scale.exists():
        text = _read(scale) or ""
        for marker, part in scaled.pages(root).items():
            text = _between_markers(scale, text, marker, part)
        found[scale] = text
    return found


def options_page() -> str:
    """All options, in one table per kind of reader and writer."""
    parts = [_head("Options", "cassieq_spark/options", OPTIONS_HEAD)]
    for scopes in dict.fromkeys(option.scopes for option in OPTIONS):
        parts.append(f"## {_where(scopes)}\n")
        if scopes == {Scope.QUEUE}:
            parts.append(QUEUE_NOTE)
        options = [option for option in OPTIONS if option.scopes == scopes]
        if scopes == {Scope.SPARK}:
            rows = [[f"`{option.name}`", option.doc] for option in options]
            parts.append(table(["Option", "Meaning"], rows))
            continue
        rows = [
            [
                _names(option),
                _default(option),
                option.values.allowed,
                option.since,
                option.doc + ("" if option.has_variable else " Has no variable."),
            ]
            for option in options
        ]
        parts.append(table(["Option", "Default", "Allowed", "Since", "Meaning"], rows))
    return "\n".join(parts)


def _names(option: Option) -> str:
    """The option as Spark's users write it, and as a keyword if it is one of `connect`."""
    names = [option.name]
    if Scope.CONNECTION in option.scopes:
        names.append(snake_case(option.name))
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def source_table() -> str:
    """What the guide to the source shows: its options, but for the connection's."""
    rows = [
        [f"`{option.name}`", _default(option), option.doc]
        for option in OPTIONS
        if Scope.SOURCE in option.scopes and Scope.CONNECTION not in option.scopes
    ]
    return table(["Option", "Default", "Meaning"], rows)


def errors_page() -> str:
    """All errors, by their base class."""
    parts = [_head("Errors", "cassieq_spark/errors.py", ERRORS_HEAD)]
    leaves = [kind for kind in _errors_below(errors.CassieqError) if "code" in vars(kind)]
    for base in dict.fromkeys(_family(kind) for kind in leaves):
        parts.append(f"## {base.__name__}\n")
        parts.append(f"{_summary(base)}\n")
        rows = [
            [
                f"`{kind.code}`",
                _class(kind),
                "yes" if kind.retriable else "no",
                kind.meaning,
                kind.remedy,
            ]
            for kind in leaves
            if _family(kind) is base
        ]
        parts.append(table(["Code", "Class", "Again", "Meaning", "What to do"], rows))
    return "\n".join(parts)


def events_page() -> str:
    """All events, by name."""
    rows = [
        [f"`{name}`", logging.getLevelName(event.level), event.meaning]
        for name, event in sorted(log.EVENTS.items())
    ]
    return "\n".join(
        [
            _head("Log events", "cassieq_spark/log.py", EVENTS_HEAD),
            table(["Event", "Level", "Meaning"], rows),
        ]
    )


def metrics_page() -> str:
    """All metrics, in the order of the code."""
    parts = [_head("Metrics", "cassieq_spark/metrics.py", METRICS_HEAD)]
    rows = [
        [
            f"`{counter.name}`",
            "" if isinstance(counter, metrics.Counter) else f"`{counter.label}`",
            counter.meaning,
        ]
        for counter in metrics.every_counter()
    ]
    parts.append(table(["Counter", "Label", "Meaning"], rows))
    for title, head, families in (
        ("Of all queues", OF_QUEUES_HEAD, metrics.OF_QUEUES),
        ("Of scans", OF_SCANS_HEAD, metrics.OF_SCANS),
        ("Of passes of repair", OF_PASSES_HEAD, metrics.OF_PASSES),
        ("Of a gateway", OF_GATEWAYS_HEAD, metrics.OF_GATEWAYS),
    ):
        rows = [
            [
                f"`{one.name}`",
                one.kind,
                ", ".join(f"`{label}`" for label in one.labels),
                one.meaning,
            ]
            for one in families
        ]
        parts += [f"## {title}\n", head, table(["Metric", "Kind", "Labels", "Meaning"], rows)]
    return "\n".join(parts)


def toml() -> str:
    """Every option that may be shared by programs."""
    lines = [TOML_HEAD]
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for option in options_of(section):
            has_default = option.default is not None
            # Whoever uses the file would have asked for each default that stands there.
            is_set = has_default and section != "queue"
            value = _plain(option, option.default if has_default else option.example)
            default = f" Default: {json.dumps(value)}." if has_default > is_set else ""
            lines += _comment(option.doc)
            lines += _comment(f"Allowed: {option.values.allowed}.{default}")
            lines.append(f"{'' if is_set else '# '}{option.name} = {json.dumps(value)}\n")
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(title: str, source: str, text: str) -> str:
    return f"# {title}\n\n<!-- Made by `make docs` from {source}: edit that. -->\n\n{text}"


def _where(scopes: Iterable[Scope]) -> str:
    return ", ".join(WHERE[scope] for scope in Scope if scope in set(scopes))


def _default(option: Option) -> str:
    if option.is_required:
        return "required"
    if option.default is None:
        return ""
    plain = _plain(option, option.default)
    shown = plain if isinstance(plain, str) else json.dumps(plain)
    unit = "" if option.unit in ("", "bytes") else f" {option.unit}"
    return f"`{shown}`{unit}"


def _plain(option: Option, value: Any) -> str | int | float | bool:
    """As a user writes it, and as TOML has it."""
    if option.unit == "bytes":
        return show_bytes(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str | int | float):
        raise TypeError(f"{option.name}: cannot show {value!r}")
    return value


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, width=98)]


def _errors_below(base: type[errors.CassieqError]) -> list[type[errors.CassieqError]]:
    found = []
    for kind in base.__subclasses__():
        if kind.__module__ != errors.__name__:
            continue  # a test's own
        found += [kind, *_errors_below(kind)]
    return found


def _class(kind: type[errors.CassieqError]) -> str:
    """The class, with the one of Python that it also is."""
    pythons = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
    return " · ".join(f"`{name}`" for name in (kind.__name__, *pythons))


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0].replace("``", "`")


def _family(kind: type[errors.CassieqError]) -> type[errors.CassieqError]:
    """The class right below the root."""
    return next(base for base in kind.__mro__ if errors.CassieqError in base.__bases__)


def _between_markers(path: Path, text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, has_begin, rest = text.partition(begin)
    _, has_end, tail = rest.partition(end)
    if not has_begin or not has_end:
        raise SystemExit(f"{path.name} has no {begin} ... {end}: put them where the {name} go")
    return f"{head}{begin}\n{table}{end}{tail}"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
