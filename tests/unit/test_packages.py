"""What pyproject.toml asks for is what requirements-dev.txt locks, and the lock names no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "requirements-dev.txt").read_text("utf-8")
LOCKED: dict[str, list[str]] = {}
for _name, _version in re.findall(r"^([a-z0-9.-]+)==(\S+)", LOCK, re.MULTILINE):
    LOCKED.setdefault(_name, []).append(_version)


def asked() -> list[str]:
    """Every requirement of the package, of its extras and of its groups."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = PROJECT["dependency-groups"].values()
    lists = [PROJECT["project"]["dependencies"], *extras, *groups]
    texts = {one for some in lists for one in some if isinstance(one, str)}
    return sorted(one for one in texts if not one.startswith("cassieq_spark["))


@pytest.mark.parametrize("text", asked())
def test_what_is_asked_for_is_locked(text: str) -> None:
    """Else: make lock."""
    wanted = Requirement(text)
    versions = LOCKED[canonicalize_name(wanted.name)]
    assert all(wanted.specifier.contains(version) for version in versions), versions


def test_each_package_has_its_hashes_and_the_lock_names_no_index() -> None:
    assert 100 < len(LOCKED)
    packages = re.findall(r"^[a-z0-9.-]+==.*\n", LOCK, re.MULTILINE)
    assert packages == re.findall(
        r"^([a-z0-9.-]+==.*\n)    --hash=sha256:[0-9a-f]{64}", LOCK, re.MULTILINE
    )
    assert "://" not in LOCK
    assert "index" not in LOCK


def test_make_installs_every_extra() -> None:
    (extras,) = re.findall(
        r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert set(extras.split(",")) | {"cluster"} == set(PROJECT["project"]["optional-dependencies"])
