"""What catches the system's own errors swallows no timeout or lost connection of the store.

`StoreTimeout` is a TimeoutError and `StoreUnavailable` a ConnectionError, so both are OSErrors.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import io
import queue
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

import cassieq_spark
from cassieq_spark.errors import CassieqError, StoreTimeout, StoreUnavailable

PACKAGE: Final = Path(cassieq_spark.__file__).parent

LOCAL: Final = "it asks this machine alone"
EVENT: Final = "it waits for an event of its own loop, which carries no error"
PROBE: Final = "it speaks to a node by a plain socket"
DRIVER: Final = "the driver raises or tells its own errors alone"

REASONS: Final = {
    "accounts/keys.py:_why": LOCAL,
    "cli/app.py:main": "`ended_by` tells them apart",
    "cli/repair.py:write_metrics": LOCAL,
    "cli/shell.py:say": LOCAL,
    "embedded/machine.py:writes": "its blocks start a node, and ask for no row",
    "exporter/listen.py:_answer": "wsgiref answers whatever a metric raises, and passes none on",
    "exporter/listen.py:start": LOCAL,
    "exporter/scan.py:_pause": EVENT,
    "queue/waiting.py:_until_due": EVENT,
    "server/backend.py:close": "a client that closes raises none: it waits for what is under way",
    "server/backend.py:run": EVENT,
    "server/entrance.py:_accept": LOCAL,
    "server/serve.py:_connect": LOCAL,
    "spark/source/reader.py:asked_for_limits": LOCAL,
    "spark/source/renewal.py:_renew_all": EVENT,
    "store/call.py:_acquire": EVENT,
    "store/call.py:run": EVENT,
    "store/driver.py:__init__": DRIVER,
    "store/driver.py:fail": DRIVER,
    "store/driver.py:send": DRIVER,
    "store/node_clocks.py:__call__": DRIVER,
    "store/session.py:_sent_later": DRIVER,
    "store/session.py:_set": DRIVER,
    "store/session.py:define": DRIVER,
    "store/tls.py:_answers_plain": PROBE,
    "store/tls.py:_look": PROBE,
    "store/tls.py:disagreement": PROBE,
    "store/translate.py:translate": DRIVER,
    "testing/simulated/transport.py:_coordinate": "only a simulated node is at work below it",
    "worker/child.py:_receive": LOCAL,
    "worker/health.py:answer": EVENT,
    "worker/process.py:_listen": LOCAL,
    "worker/process.py:_send": LOCAL,
    "worker/process.py:end": LOCAL,
    "worker/work.py:_renew": LOCAL,
}
"""Why no error of the store comes by, or why it is told apart, by file and function."""

KNOWN: Final = {
    name
    for kind in (
        *(asyncio.Transport, Connection, Path, deque, dict, io.BufferedRandom, io.TextIOWrapper),
        *(list, pa.RecordBatchReader, queue.SimpleQueue, socket.socket, ssl.SSLContext, str),
    )
    for name in dir(kind)
}
"""Methods that ask nobody but this machine."""


def first_of(node: ast.AST) -> str:
    """The first name of a call such as ``os.path.exists(...)``; empty: it begins with a value."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_ours(call: ast.Call, module: ModuleType) -> bool:
    """Whether a call may be one of this package."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in KNOWN:
        return False
    name = first_of(call.func)
    found = vars(module).get(name, vars(builtins).get(name))
    if not hasattr(found, "__name__"):
        return True  # a value, whose calls may do anything
    origin = found.__name__ if isinstance(found, ModuleType) else found.__module__
    return str(origin).startswith("cassieq_spark")


def may_ask_the_store(body: list[ast.stmt], module: ModuleType) -> bool:
    """Whether a block has anything in it but calls of the standard library and the like."""
    waits = ast.Await | ast.AsyncWith | ast.AsyncFor | ast.Yield | ast.YieldFrom
    return any(
        isinstance(node, waits) or (isinstance(node, ast.Call) and is_ours(node, module))
        for statement in body
        for node in ast.walk(statement)
    )


def caught(kinds: Iterable[ast.expr], module: ModuleType) -> set[type]:
    """The classes that are named there; a name that is no global is none."""

    def flat(value: Any) -> Iterator[type]:
        for one in value if isinstance(value, tuple) else getattr(value, "__args__", (value,)):
            if isinstance(one, tuple):
                yield from flat(one)
            else:
                yield one

    found: set[type] = set()
    for kind in kinds:
        try:
            value = eval(ast.unparse(kind), vars(module))  # noqa: S307 - our own source
        except NameError:
            continue
        found |= {one for one in flat(value) if isinstance(one, type)}
    return found


def is_trap(kinds: set[type]) -> bool:
    """Whether it catches the store's errors as if they were the system's."""
    known = any(issubclass(CassieqError, one) for one in kinds)
    store = (StoreTimeout, StoreUnavailable)
    others = [one for one in kinds if not issubclass(one, CassieqError)]
    return not known and any(issubclass(its, one) for its in store for one in others)


def catches(node: ast.AST, module: ModuleType) -> Iterator[set[type]]:
    """What each handler of a node catches, with what those before it do."""
    match node:
        case ast.Try(handlers=handlers):
            before: set[type] = set()
            for handler in handlers:
                before |= caught([handler.type] if handler.type else [], module)
                yield before
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                call = item.context_expr
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("suppress"):
                    yield caught(call.args, module)
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass")):
            yield caught(node.args[1:], module)
        case ast.MatchClass(cls=cls):
            yield caught([cls], module)


def traps(module: ModuleType, tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each place that catches such an error, with its function."""

    def look(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if any(is_trap(kinds) for kinds in catches(node, module)):
            body = getattr(node, "body", None)
            if body is None or may_ask_the_store(body, module):
                yield function, node
        for child in ast.iter_child_nodes(node):
            yield from look(child, function)

    yield from look(tree, "")


def test_whoever_catches_the_systems_errors_lets_the_stores_pass() -> None:
    """Each handles `CassieqError`, calls the standard library alone, or says why it may."""
    found: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__main__.py":
            its = path.relative_to(PACKAGE)
            name = ".".join(("cassieq_spark", *its.with_suffix("").parts))
            module = importlib.import_module(name.removesuffix(".__init__"))
            for function, node in traps(module, ast.parse(path.read_text("utf-8"))):
                found[f"{its}:{function}"] = getattr(node, "lineno", 0)

    assert {} == {place: line for place, line in found.items() if place not in REASONS}
    assert set() == REASONS.keys() - found.keys(), "these catch none any more"
