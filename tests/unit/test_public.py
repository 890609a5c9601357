"""What is public is small, and said: programs need no other module. docs/reference/api.md."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import cassieq_spark
from cassieq_spark import testing
from cassieq_spark.errors import CassieqError
from tests.fixtures.public import MODULES, OFFERING, is_alias, offered
from tests.unit.test_annotations import members

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "docs" / "reference" / "api.md"
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

COMMANDS = {
    "jobs/redrive.py": "cassieq_spark.jobs.redrive",
    "jobs/repair.py": "cassieq_spark.jobs.repair",
    "jobs/to_files.py": "cassieq_spark.jobs.to_files",
}
"""A job of the package by its path in a checkout: each is that documented command."""

MADE_BY_CALLS = (
    *("AsyncClient", "AsyncConsumer", "AsyncQueue", "Client", "Consumer", "Queue"),
    *("AsyncSchedules", "Node", "Schedules"),
)
"""Classes whose objects calls return: how they are made is not for users."""


# --- programs import from public modules only -----------------------------------------------------


def private_imports(code: str) -> list[str]:
    """Return what a program uses of the package that no public module offers."""
    tree = ast.parse(code)
    named = {"cassieq_spark": "cassieq_spark"}  # the modules, by the names that the program has
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {one.asname: one.name for one in node.names if one.asname}
    used = [one for node in ast.walk(tree) for one in uses(node, named)]
    ours = [one for one in used if one[0].partition(".")[0] == "cassieq_spark"]
    return [".".join(filter(None, one)) for one in ours if not offers(*one)]


def uses(node: ast.AST, named: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each module that a node uses, with the name that it takes from it, or none."""
    match node:
        case ast.Import(names=names):
            yield from ((one.name, "") for one in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from ((module, one.name) for one in names)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in named:
            yield named[name], attribute


def offers(module: str, name: str) -> bool:
    if f"{module}.{name}".rstrip(".") in MODULES:
        return True
    if module not in MODULES or (name.startswith("_") and name != "__version__"):
        return False
    public = import_module(module)
    return name in getattr(public, "__all__", vars(public)) or name == "__version__"


def programs() -> Iterator[Any]:
    for path in sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("jobs/*.py")]):
        yield pytest.param(path.read_text("utf-8"), id=str(path.relative_to(ROOT)))


def pages() -> list[Path]:
    docs = ROOT / "docs"
    return sorted([ROOT / "README.md", *docs.glob("*.md"), *docs.glob("[gor]*/*.md")])


def samples() -> Iterator[Any]:
    for path in pages():
        for number, (language, text) in enumerate(BLOCK.findall(path.read_text("utf-8"))):
            code = textwrap.dedent(text)
            if "cassieq" in code and (language == "python" or (not language and is_python(code))):
                yield pytest.param(code, id=f"{path.relative_to(ROOT)}[{number}]")


def is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("code", [*programs(), *samples()])
def test_a_program_for_users_imports_from_public_modules_only(
    code: str, request: pytest.FixtureRequest
) -> None:
    allowed = COMMANDS.get(request.node.callspec.id, "-")
    assert [] == [one for one in private_imports(code) if one.rpartition(".")[0] != allowed]


def test_the_samples_are_found() -> None:
    found = [one.id for one in samples()]
    assert len(found) > 15
    for page in ("README.md", "docs/getting-started.md", "docs/guides/sink.md"):
        assert [one for one in found if one.startswith(page)], page


# --- what public signatures name can be imported --------------------------------------------------


def public_names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for public in map(import_module, MODULES):
        own = {key: one for key, one in vars(public).items() if key[0] != "_"}
        names = getattr(public, "__all__", own)
        found |= {name: getattr(public, name) for name in names}
    return found


def callables() -> Iterator[tuple[str, Any]]:
    """Yield the functions, and the classes with their public methods."""
    tools = {name: getattr(testing, name) for name in testing.__all__}
    for name, found in {**offered(), **tools}.items():
        if is_alias(found):
            continue
        yield name, found
        for inner, member in members(found).items() if isinstance(found, type) else ():
            plain = member.fget if isinstance(member, property) else member
            plain = getattr(plain, "__func__", plain)  # a classmethod
            hidden = inner == "__init__" and name in MADE_BY_CALLS
            if callable(plain) and not hidden and "not part of the API" not in str(plain.__doc__):
                yield f"{name}.{inner}", plain


def ours_in(hint: Any) -> set[type]:
    """Return the classes of the package in a type, however deep."""
    if isinstance(hint, list):  # the arguments of a Callable
        return set[type]().union(*map(ours_in, hint))
    inner = set[type]().union(*map(ours_in, typing.get_args(hint)))
    kind = typing.get_origin(hint) or hint
    is_ours = isinstance(kind, type) and kind.__module__.startswith("cassieq_spark")
    return inner | {kind} if is_ours else inner


def test_each_class_in_a_public_signature_can_be_imported_from_a_public_module() -> None:
    public = {one for one in public_names().values() if isinstance(one, type)}
    named = {
        f"{where}({name})": kind
        for where, found in callables()
        for name, hint in typing.get_type_hints(found).items()
        for kind in ours_in(hint)
        if not name.startswith("_")
    }

    assert {"Queue.get(return)", "Client.create_queue(settings)"} < named.keys()
    assert {} == {where: kind for where, kind in named.items() if kind not in public}


def aliases_in(found: Any) -> set[str]:
    """Return the names for other types that annotations use, as they are written and shown."""
    names: set[str] = set()
    for owner in found.__mro__ if isinstance(found, type) else [inspect.unwrap(found)]:
        if owner.__module__.startswith("cassieq_spark"):
            known = vars(sys.modules[owner.__module__])
            for written in inspect.get_annotations(owner).values():
                text = getattr(written, "__forward_arg__", written)  # a TypedDict's
                tree = ast.parse(text if isinstance(text, str) else "", mode="exec")
                used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                names |= {one for one in used if typing.get_origin(known.get(one)) is not None}
    return names


def test_each_alias_in_a_public_signature_can_be_imported_from_a_public_module() -> None:
    """A `NewType` is no alias: a program has and gives what it is made of, such as a UUID."""
    used = set[str]().union(*(aliases_in(found) for _, found in callables()))

    assert {"Held", "OnProgress", "Seconds"} == used
    assert used < public_names().keys()


# --- what is public is said -----------------------------------------------------------------------


def test_the_page_of_the_api_names_every_public_name_and_no_other() -> None:
    page = API.read_text("utf-8")
    shown = set(re.findall(r"^::: cassieq_spark(?:\.spark)?\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in cassieq_spark.__all__ if is_error(getattr(cassieq_spark, name))}
    told = {name for name in offered() if f"- `{name}`: " in page}

    assert offered().keys() - errors == (shown | told) - {"errors"}
    assert [] == [name for name in errors if f"`{name}`" not in page]


def is_error(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, CassieqError)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_and_help_say_which_modules_are_public(module: str) -> None:
    rule = API.read_text("utf-8").partition("## What is public")[2].partition("\n## ")[0]
    assert f"`{module}`" in rule
    assert module in (cassieq_spark.__doc__ or "") + cassieq_spark.__name__


# --- and loaded when it is used -------------------------------------------------------------------

WITHOUT_PYSPARK = "import sys; sys.modules['pyspark'] = None\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", OFFERING)
def test_a_package_loads_no_module_of_its_names(package: str) -> None:
    done = run(
        f"import {package}, sys; print(*(one for one in sys.modules if 'cassieq' in one or "
        "one in ('pyspark', 'logging', 'asyncio')))"
    )
    light = {"cassieq_spark", "cassieq_spark.lazy"}
    if package == "cassieq_spark.spark":
        light |= {package, "cassieq_spark.errors"}
    assert light == set(done.stdout.split()), done.stderr


def test_help_shows_the_package_without_pyspark() -> None:
    done = run(f"{WITHOUT_PYSPARK}import cassieq_spark; help(cassieq_spark)")
    assert 0 == done.returncode, done.stderr
    assert [] == [name for name in cassieq_spark.__all__ if name not in done.stdout]
    assert "Every other\n    module is private" in done.stdout


def test_the_spark_side_says_without_pyspark_what_to_install() -> None:
    done = run(f"{WITHOUT_PYSPARK}from cassieq_spark.spark import spark_config")
    assert (
        "cassieq_spark.errors.SparkMissing: [cassieq:spark_missing] this needs PySpark, which is "
        'not installed in this Python. Run: pip install "cassieq_spark[spark]"'
    ) == done.stderr.splitlines()[-1]


def test_a_name_that_has_moved_or_never_was_is_an_attribute_error() -> None:
    for package, name in (("cassieq_spark", "register"), ("cassieq_spark.spark", "connect")):
        with pytest.raises(AttributeError, match=f"'{package}' has no attribute '{name}'"):
            getattr(import_module(package), name)
