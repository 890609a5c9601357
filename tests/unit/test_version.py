"""The version tells two commits apart, and needs no git where there is none."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import cassieq_spark
from cassieq_spark import version

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *who, *arguments],  # noqa: S607
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one")
    return tmp_path


def test_two_commits_have_two_versions(checkout: Path) -> None:
    first = version.find(checkout)
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "two")
    second = version.find(checkout)
    assert first != second
    assert second.endswith("+g" + git(checkout, "rev-parse", "--short=9", "HEAD"))


def test_without_git_it_is_what_the_build_has_stored(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(version, "version", lambda _: "0.1.0.dev7+gabc")
    assert "0.1.0.dev7+gabc" == version.find(checkout)


def test_copied_files_have_a_version_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise version.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert version.UNKNOWN == version.find(tmp_path)


def test_the_package_says_it() -> None:
    said = cassieq_spark.__version__
    assert re.fullmatch(r"\d+(\.\d+)+(\.(dev|post)\d+)?(\+[a-z0-9.]+)?", said), said
    assert version.find() == said
    assert "__version__" in dir(cassieq_spark)


def test_the_build_falls_back_to_the_same_version() -> None:
    assert f'fallback_version = "{version.UNKNOWN}"' in (ROOT / "pyproject.toml").read_text("utf-8")
