"""Offer a package's public names without importing their modules: `offer`."""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import Any


def offer(package: str, **computed: str) -> tuple[Any, Any, list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose table is its ``api``.

    A name is imported on first use: a process pays only for what it uses (PEP 562). Spark's Python
    workers import the package with every task's first module, and a program that only puts has no
    PySpark at all.

    The table's code runs with an ``import`` that takes notes, and imports nothing.

    Args:
        computed: Further names, each with the module whose ``find`` returns its value.
    """
    homes: dict[str, str] = {}

    def note(home: str, _globals: Any, _locals: Any, names: tuple[str, ...], *_: int) -> Any:
        homes.update(dict.fromkeys(names, home))
        return SimpleNamespace(**dict.fromkeys(names))

    def get(name: str) -> Any:
        if name in homes:
            found = getattr(import_module(homes[name]), name)
        elif name in computed:
            found = import_module(computed[name]).find()
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(import_module(package), name, found)
        return found

    # The file finder's own, of a folder or a zip file: pytest's has no code of a module.
    spec = PathFinder.find_spec(f"{package}.api", import_module(package).__path__)
    loader: Any = getattr(spec, "loader", None)
    exec(loader.get_code(f"{package}.api"), {"__builtins__": {"__import__": note}})  # noqa: S102 - our own
    return get, lambda: [*homes, *computed], list(homes)
