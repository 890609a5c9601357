"""An import defines names. It asks the machine for nothing, and changes nothing in its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

WATCH = """
import json, os, signal, sys, threading

seen = []

def note(event, arguments):
    if event == "open":
        name = os.fspath(arguments[0]) if not isinstance(arguments[0], int) else ""
        if name.endswith((".py", ".pyc")) or ".pyc." in name:  # the import itself
            return
        seen.append([event, str(name)])
    elif event in WATCHED:
        seen.append([event, str(arguments[:1])])

def watched(name):
    real = getattr(os, name)
    def call(path, *args, **more):
        seen.append(["os." + name, str(path)])
        return real(path, *args, **more)
    return call

WATCHED = {
    "os.putenv", "os.unsetenv", "os.chdir", "os.mkdir", "os.remove", "os.system", "os.exec",
    "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.bind",
    "socket.getaddrinfo", "signal.signal",
}
before = dict(os.environ), os.getcwd(), threading.active_count(), signal.getsignal(signal.SIGTERM)
if not IS_ALL:
    os.stat, os.access = watched("stat"), watched("access")  # which have no audit event
    sys.addaudithook(note)
"""
ONE = "import cassieq_spark\n"
ALL = """
import importlib, pkgutil, cassieq_spark
for module in pkgutil.walk_packages(cassieq_spark.__path__, "cassieq_spark."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
SAY = """
after = dict(os.environ), os.getcwd(), threading.active_count(), signal.getsignal(signal.SIGTERM)
print(json.dumps({"seen": seen, "is_same": before == after}))
"""


def said(code: str, *, is_all: bool = False) -> Any:
    script = WATCH.replace("IS_ALL", str(is_all)) + code + SAY
    environment = {  # else nothing would be left for it to set
        name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_importing_the_package_asks_for_nothing_and_changes_nothing() -> None:
    assert {"seen": [], "is_same": True} == said(ONE)


def test_importing_any_module_changes_nothing_in_its_process() -> None:
    assert {"seen": [], "is_same": True} == said(ALL, is_all=True)


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("open('/dev/null').close()\n", "open"),
        ("os.environ['A'] = 'b'\n", "os.putenv"),
        ("os.path.exists('/dev/null')\n", "os.stat"),
    ],
)
def test_what_an_import_must_not_do_is_noticed(code: str, event: str) -> None:
    """Else the tests above would show nothing."""
    assert event in [name for name, _ in said(code)["seen"]]
