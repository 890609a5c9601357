"""The public names with their signatures and first sentences, for who reads the page as text."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cells import table

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTIVE = re.compile(r"^::: (cassieq_spark\S*)\.(\w+)$", re.MULTILINE)


def names_table(page: str) -> str:
    """What the directives of a page name, in their order, with the methods of classes."""
    rows = [
        row
        for home, name in DIRECTIVE.findall(page)
        if name != "errors"  # they have a page of their own
        for row in _rows(name, getattr(import_module(home), name))
    ]
    return table(["Name", "Meaning"], rows)


def _rows(name: str, found: Any) -> Iterator[list[str]]:
    if not inspect.isclass(found):
        yield [f"`{name}{_arguments(found)}`", _sentence(found)]
        return
    yield [f"`{name}`", _sentence(found)]
    # Those of our base classes, too, as help() has them, and not those of str.
    ours = [base for base in found.__mro__ if base.__module__.startswith("cassieq_spark.")]
    for key in dict.fromkeys(key for base in ours for key in vars(base)):
        member = inspect.getattr_static(found, key)
        said = _sentence(member)
        if key.startswith("_") or not said or said.endswith("not part of the API."):
            continue
        if inspect.isroutine(member):
            function = getattr(found, key)
            awaited = "await " if inspect.iscoroutinefunction(function) else ""
            yield [f"`{awaited}{name}.{key}{_arguments(function)}`", said]
        elif isinstance(member, property):
            yield [f"`{name}.{key}`", said]


def _arguments(function: Any) -> str:
    bare = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]
    return str(inspect.Signature(bare))


def _sentence(found: object) -> str:
    """The first sentence, which may take several lines."""
    paragraph = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    text = paragraph.replace("``", "`")
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0]
