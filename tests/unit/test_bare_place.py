"""An import asks the machine for nothing: what needs a folder says so when it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

import cassieq_spark
from tests.fixtures.bare import COMMAND_LINE, run_bare, says

PACKAGE = str(Path(cassieq_spark.__file__).parent)

IMPORT_ALL = """
import importlib, pkgutil
import cassieq_spark

names = [
    one.name
    for one in pkgutil.walk_packages(cassieq_spark.__path__, "cassieq_spark.")
    if not one.name.endswith("__main__")
]
before = state()
for name in names:
    importlib.import_module(name)
print(len(names), before == state())
"""

WATCH = """
import functools, os, platform, signal, socket, sys, sysconfig, tempfile, threading, time

PACKAGE, LIBRARY = sys.argv[1], sysconfig.get_path("stdlib")
asked = set()

def state():
    return dict(os.environ), os.getcwd(), threading.active_count(), signal.getsignal(15)

def asks(name, real):
    @functools.wraps(real)
    def asking(*given, **more):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "<module>":
            file = frame.f_code.co_filename
            is_known = file.startswith((PACKAGE, LIBRARY, "<frozen "))
            if not is_known or "importlib" in file or "site-packages" in file:
                return real(*given, **more)  # an import, or another package's own business
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            asked.add(f"{frame.f_code.co_filename.removeprefix(PACKAGE)} asks for {name}")
        return real(*given, **more)
    return asking

variables = type(os.environ)
variables.__getitem__ = asks("the environment", variables.__getitem__)
variables.__iter__ = asks("the environment", variables.__iter__)
for module, names in {
    os: ["access", "cpu_count", "getcwd", "getlogin", "getpid", "getuid", "stat", "uname"],
    os.path: ["expanduser", "expandvars"],
    platform: ["machine", "node", "system"],
    socket: ["getfqdn", "gethostname"],
    tempfile: ["gettempdir", "mkdtemp", "mkstemp"],
    time: ["monotonic", "time"],
}.items():
    for name in names:
        setattr(module, name, asks(name, getattr(module, name)))
"""

HELP = """
import sys
from typer.testing import CliRunner
from cassieq_spark.cli.app import app
from tests.unit.test_cli_help import ALL

for words in ((), *ALL):
    done = CliRunner().invoke(app, [*words, "--help"])
    assert (0, None) == (done.exit_code, done.exception), (words, done.output)
    assert "Usage: " in done.output
print(len(ALL))
"""


@pytest.mark.sample
def test_every_module_is_imported_there_asks_for_nothing_and_changes_nothing() -> None:
    printed = says(WATCH + IMPORT_ALL + "print(*sorted(asked), sep='\\n')", PACKAGE).splitlines()

    count, is_as_before = printed[0].split()
    assert (True, "True") == (int(count) > 200, is_as_before)
    assert [] == [line for line in printed[1:] if line]


def test_every_command_helps_there() -> None:
    assert 30 < int(says(HELP, PYTHONPATH=str(Path(PACKAGE).parent)))
    assert cassieq_spark.__version__ in says(COMMAND_LINE, "--version")
    assert "keyspace" in says(COMMAND_LINE, "config")


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("cassandra", "start"), "Set HOME, or name a data directory"),
        (("cassandra", "fetch"), "Set HOME, or set XDG_CACHE_HOME"),
        (("queue", "list"), "no contact points"),
    ],
)
def test_a_command_that_needs_a_home_says_so(words: tuple[str, ...], needs: str) -> None:
    code, out, err = run_bare(COMMAND_LINE, *words)

    assert (True, "") == (code in {1, 2}, out)
    (line,) = err.splitlines()
    assert line.startswith("[cassieq:")
    assert needs in line


def test_an_embedded_node_says_which_folder_it_needs() -> None:
    tell = """
import sys
from cassieq_spark.embedded.machine import choose_ports
from cassieq_spark.embedded.software import CASSANDRA, jars_of
from cassieq_spark.errors import EmbeddedFailed
from pathlib import Path

for work in (
    lambda: choose_ports(["127.0.0.1"]),
    lambda: jars_of(CASSANDRA, None, Path(sys.argv[1])),
):
    try:
        work()
    except EmbeddedFailed as error:
        print(error)
"""
    nowhere = Path(__file__) / "cache"
    temporary, cache = says(tell, str(nowhere)).splitlines()

    assert "needs a directory for temporary files" in temporary
    assert "Set TMPDIR" in temporary
    assert f"the cache directory {nowhere} cannot be written: Not a directory" in cache
