"""Tell which commit this package is, so that two of them can be told apart."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

UNKNOWN: Final = "0.1.0.dev0"
"""The version of files that were copied from a checkout, without its history."""

GIT_ANSWERS_WITHIN_S: Final = 10.0


def find(root: Path = Path(__file__).parents[1]) -> str:
    """Return the version: of a checkout with its commit, or as the build has stored it.

    An installation in editable mode keeps the version of the day it was installed, so a checkout
    asks git. Called when somebody asks for the version, never by an import.
    """
    try:
        installed = version("cassieq_spark")
    except PackageNotFoundError:
        installed = UNKNOWN
    commit = _commit(root)
    if commit is None:
        return installed
    return f"{installed.partition('+')[0]}+g{commit}"


def _commit(root: Path) -> str | None:
    """The short id of the commit that is checked out, if this is a checkout and there is git."""
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"],  # noqa: S607 - the git on PATH
            cwd=root,
            capture_output=True,
            text=True,
            timeout=GIT_ANSWERS_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
