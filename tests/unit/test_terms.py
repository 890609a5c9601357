"""The glossary is the table of terms: no public name uses a word that it says is not ours."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from cassieq_spark import errors, log, metrics
from cassieq_spark.cli.app import app
from cassieq_spark.options import OPTIONS
from cassieq_spark.server.rest.door import document
from cassieq_spark.spark.views.columns import VIEWS
from tests.fixtures.public import is_alias, offered
from tests.fixtures.sources import events

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
BARE = re.compile(r"^- ((?:\*\w+\*(?: and )?)+):", re.MULTILINE)

FORCED = {
    "enqueued_at": "the time of the put, by its usual name; stored and read by every release",
}
QUALIFIED = {
    "batch": "a flag of `cassieq load`, which know no other batch; the end of a "
    "path of REST, as in SQS's SendMessageBatch; the batch of the sink that the event names",
    "session": "a field of the event connector_session_closed, which says whose",
    "owner": "whoever declares a schedule in a file; nobody holds it as a lease is held",
}


def words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


def forbidden(page: str) -> set[str]:
    """Return the words in code style of each third column that is headed "Not"."""
    found, is_last = set[str](), False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            is_last = False
        elif cells[-1] == "Not":
            is_last = True
        elif is_last and len(cells) == 3:
            found.update(re.findall(r"`([^`]+)`", cells[2]))
    return found


def bare(page: str) -> set[str]:
    return {word for found in BARE.findall(page) for word in re.findall(r"\w{4,}", found)}


def uses(name: str, term: str) -> bool:
    """Whether a name has that word, or those words in a row, also as a plural or a past form."""
    *first, last = words(term)
    forms = [[*first, form] for form in (last, f"{last}s", f"{last}d", f"{last}ed")]
    own = words(name)
    return any(own[at : at + len(first) + 1] in forms for at in range(len(own)))


def misnamed(names: Iterable[str], page: str) -> list[tuple[str, str]]:
    terms, alone = sorted(forbidden(page)), bare(page)
    found = [(name, term) for name in names for term in terms if uses(name, term)]
    return sorted([*found, *((name, "alone") for name in names if name in alone)])


# --- the names that users meet --------------------------------------------------------------------


def flags() -> Iterator[str]:
    def below(group: click.Group) -> Iterator[str]:
        for name, one in group.commands.items():
            yield name
            for param in one.params:
                yield from (text.lstrip("-") for text in (*param.opts, *param.secondary_opts))
            if hasattr(one, "commands"):
                yield from below(one)  # type: ignore[arg-type]  # typer's groups

    return below(typer.main.get_command(app))  # type: ignore[arg-type]  # it has groups


def metrics_and_labels() -> Iterator[str]:
    for counter in metrics.every_counter():
        yield counter.name
        yield from [counter.label] if isinstance(counter, metrics.LabelledCounter) else []
    for families in (metrics.OF_QUEUES, metrics.OF_SCANS, metrics.OF_PASSES, metrics.OF_GATEWAYS):
        for family in families:
            yield from (family.name, *family.labels)


def events_and_fields() -> Iterator[str]:
    yield from log.EVENTS
    for one in events():
        yield from one.fields


def names_of_python() -> Iterator[str]:
    for name, found in offered().items():
        yield name
        yield from () if is_alias(found) else _within(found)
    for name, one in vars(errors).items():
        if inspect.isclass(one) and issubclass(one, errors.CassieqError):
            yield from (name, one.code, *_within(one))


def _within(found: Any) -> Iterator[str]:
    if not inspect.isclass(found):
        yield from inspect.signature(found).parameters
        return
    yield from (field.name for field in fields(found)) if is_dataclass(found) else ()
    for base in found.__mro__:
        for name, member in vars(base).items() if base.__module__.startswith("cassieq") else ():
            if not name.startswith("_"):
                yield name
            if inspect.isroutine(member) and (name == "__init__" or not name.startswith("_")):
                yield from inspect.signature(getattr(found, name)).parameters


def names_of_rest() -> Iterator[str]:
    for path, methods in document()["paths"].items():
        yield from (part.strip("{}") for part in path.split("/") if part)
        for operation in methods.values():
            yield operation["operationId"]
            yield from (parameter["name"] for parameter in operation["parameters"])
    yield from _fields(document()["components"])


def _fields(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(own := schema.get("properties"), dict):
            yield from own
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from _fields(inner)


NAMES = {
    "options": {option.name for option in OPTIONS},
    "commands and flags": set(flags()),
    "metrics and labels": set(metrics_and_labels()),
    "events and fields": set(events_and_fields()),
    "python": set(names_of_python()),
    "rest": set(names_of_rest()),
    "views and columns": {*VIEWS, *(name for view in VIEWS.values() for name in view.all.names)},
}


@pytest.mark.parametrize("kind", NAMES)
def test_no_public_name_uses_a_word_that_the_glossary_forbids(kind: str) -> None:
    page = GLOSSARY.read_text("utf-8")
    assert len(NAMES[kind]) > 40

    found = [one for one in misnamed(NAMES[kind], page) if one[0] not in {*FORCED, *QUALIFIED}]

    assert [] == found


def test_a_name_in_the_glossary_is_one_that_users_meet_and_an_exception_is_still_needed() -> None:
    page = GLOSSARY.read_text("utf-8")
    every = set[str]().union(*NAMES.values())
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    named = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}

    assert set() == named - every
    assert {*FORCED, *QUALIFIED} == {name for name, _ in misnamed(every, page)}
