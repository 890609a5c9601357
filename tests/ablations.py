"""Every rule that a counterexample gave us has a test that fails without it: take it away and see.

    python -m tests.ablations            all, one after the other
    python -m tests.ablations P7 R1      these
    python -m tests.ablations --table    the table of docs/marks.md

Each rule is taken out of a copy of the package, and its tests run there must fail, each by an
assertion or an error of its own. Before, all of them must pass there. About an hour for all;
not a part of ``make test``, but that each rule is still to be found in the code, and each test
still there, is (``tests/unit/test_marks.py``).

The rules are in ``tests/ablations.diff``, a block each::

    # mark: rule
    @@ the module, where the same words stand in others, too
    -    lines that are taken out of it
    +    what comes in their place, if anything
     tests/node/test_one.py::test_that_then_fails

A ``\\`` at the end of a line says that the line of code goes on behind it.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cassieq_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
COPIED: Final = ("cassieq_spark", "pyspark_cassieq.py", "tests", "docs", "conf", "pyproject.toml")

LONGEST_TEST_S: Final = 180
"""Ends a test that hangs without its rule; no test expects it."""

NOT_A_PROOF: Final = (
    "Failed: Timeout",
    "ImportError",
    "IndentationError",
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "UnboundLocalError",
)
"""A test that fails by one of these misses no rule: the code around it is broken."""

PASSED: Final = ""
NOT_RUN: Final = "was not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One rule: ``old`` stands once in the package; with ``new`` in its place each test fails.

    It is found by its words, wherever it stands and however it is laid out.

    Attributes:
        within: The module, where the same words stand in others, too.
    """

    mark: str
    rule: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    @property
    def path(self) -> str:
        """The module that has the rule, from the root of the project.

        Raises:
            ValueError: None has it, or several do.
        """
        words = " ".join(self.old.split())
        found = [path for path, text in _words().items() if words in text]
        if self.within in found or len(found) == 1:
            return self.within or found[0]
        raise ValueError(f"{self.mark}: in {len(found)} modules, name one:\n{self.old}")

    def applied_to(self, source: str) -> str:
        """The module without the rule; ``new`` is indented as ``old`` is there."""
        pattern = r"\s+".join(re.escape(word) for word in self.old.split())
        found = list(re.finditer(rf"[ \t]*{pattern}\n?", source))
        if len(found) != 1:
            raise ValueError(f"{self.mark}: {len(found)} times in its module:\n{self.old}")
        (one,) = found
        shift = _indent(one.group()) - _indent(self.old)
        new = "".join(
            " " * shift + line if shift > 0 else line[-shift:]
            for line in self.new.splitlines(keepends=True)
        )
        has_end = one.group().endswith("\n") and not self.old.endswith("\n")
        return source[: one.start()] + new + ("\n" if has_end else "") + source[one.end() :]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


@cache
def _words() -> dict[str, str]:
    """Each module of the package, without its layout."""
    return {
        str(path.relative_to(ROOT)): " ".join(path.read_text("utf-8").split())
        for path in sorted((ROOT / "cassieq_spark").rglob("*.py"))
    }


def _read(text: str) -> tuple[Ablation, ...]:
    """The blocks of ``ablations.diff``."""

    def code(lines: list[str]) -> str:
        return "".join(f"{line}\n" for line in lines).replace("\\\n", "")

    found = []
    for block in text.split("\n\n"):
        head, *lines = block.splitlines()
        mark, _, rule = head.removeprefix("# ").partition(": ")
        of = {sign: [line[1:] for line in lines if line[0] == sign] for sign in "@-+ "}
        assert len(lines) == sum(map(len, of.values())), block
        found.append(
            Ablation(
                mark=mark,
                rule=rule,
                old=code(of["-"]),
                new=code(of["+"]),
                tests=tuple(of[" "]),
                within="".join(of["@"]).removeprefix("@ "),
            )
        )
    return tuple(found)


ABLATIONS: Final = _read(Path(__file__).with_suffix(".diff").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Take them away one by one; 1 if one was not missed by each of its tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.ablations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("marks", nargs="*", metavar="MARK", help="P1 ... U18, lanes; none: all")
    parser.add_argument("--table", action="store_true", help="print the table of docs/marks.md")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table())
        return 0
    if unknown := sorted(set(asked.marks) - {one.mark for one in ABLATIONS}):
        parser.error(f"no ablation of {', '.join(unknown)}")
    chosen = [one for one in ABLATIONS if not asked.marks or one.mark in asked.marks]
    with tempfile.TemporaryDirectory(prefix="cassieq-ablation-") as directory:
        copy = Path(directory)
        _copy_to(copy)
        tests = sorted({test for one in chosen for test in one.tests})
        print(f"{len(chosen)} rules; first their {len(tests)} tests as they are", flush=True)
        broken = {test: why for test, why in _run(copy, tests).items() if why != PASSED}
        for test, why in broken.items():
            print(f"NOT PASSING  {test}  {why}", flush=True)
        if broken:
            return 1
        caught = sum([_is_caught(copy, one) for one in chosen])
    print(f"{caught} of {len(chosen)} rules are caught when they are taken away")
    return 0 if caught == len(chosen) else 1


def table() -> str:
    """What is built, for readers."""
    lines = ["| Mark | Rule | Where | Tests |", "| --- | --- | --- | --- |"]
    for one in ABLATIONS:
        where = one.path.removeprefix("cassieq_spark/")
        tests = ", ".join(
            f"[{test.partition('::test_')[2]}](../{test.partition('::')[0]})" for test in one.tests
        )
        lines.append(f"| {one.mark} | {one.rule} | [{where}](../{one.path}) | {tests} |")
    return "\n".join(lines)


def pytest_sessionstart(session: pytest.Session) -> None:
    """As a plugin of its own runs: what is imported must be the copy, not what is installed."""
    for module in (__file__, cassieq_spark.__file__):
        if not Path(module).resolve().is_relative_to(session.config.rootpath.resolve()):
            raise RuntimeError(f"{module} is not in {session.config.rootpath}")


def _copy_to(copy: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)


def _is_caught(copy: Path, one: Ablation) -> bool:
    module = copy / one.path
    source = module.read_text(encoding="utf-8")
    module.write_text(one.applied_to(source), encoding="utf-8")
    try:
        ended = _run(copy, one.tests)
    finally:
        module.write_text(source, encoding="utf-8")
    is_caught = all(
        why not in (PASSED, NOT_RUN) and not why.startswith(NOT_A_PROOF) for why in ended.values()
    )
    verdict = "caught    " if is_caught else "NOT CAUGHT"
    print(f"{one.mark:<4} {verdict}  {one.rule}", flush=True)
    for test, why in ended.items():
        print(f"         {test.partition('::')[2]}: {why or 'passed'}"[:160], flush=True)
    return is_caught


def _run(copy: Path, tests: Iterable[str]) -> dict[str, str]:
    """How each of these tests ended in the copy: `PASSED`, or the first line of its failure.

    A fixture that breaks, or a module that cannot be imported, is `NOT_RUN`.
    """
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    wanted = list(tests)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.ablations"),
            *("-p", "no:cacheprovider", "--timeout", str(LONGEST_TEST_S)),
            *("--junitxml", str(report), *wanted),
        ],
        cwd=copy,
        # No bytecode: two versions of a module may have one size and one second.
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    ended = _ended(report) if report.exists() else {}
    if missing := [test for test in wanted if ended.get(test, NOT_RUN) == NOT_RUN]:
        print(*missing, done.stdout[-3_000:], done.stderr[-3_000:], sep="\n", file=sys.stderr)
    return {test: ended.get(test, NOT_RUN) for test in wanted}


def _ended(report: Path) -> dict[str, str]:
    """By test; of one with parameters, a failure if any of them failed."""
    ended: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        name = re.sub(r"\[.*", "", case.attrib["name"])
        test = f"{case.attrib['classname'].replace('.', '/')}.py::{name}"
        why = PASSED if len(case) == 0 else NOT_RUN
        failure = case.find("failure")
        if failure is not None:
            why = failure.attrib["message"].partition("\n")[0] or "failed"
        if ended.get(test, PASSED) in (PASSED, NOT_RUN):
            ended[test] = why or ended.get(test, PASSED)
    return ended


if __name__ == "__main__":
    sys.exit(main())
