"""Copies of the project without one of its rules, for the children of a storm: does it see that?

The rules and their texts are those of ``tests/ablations.py``, by mark, or by mark and number where
a mark has several (``R5.1`` is the first); and a few that only a storm can miss.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from tests.ablations import ABLATIONS, Ablation
from tests.storm.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COPIED: Final = ("cassieq_spark", "pyspark_cassieq.py", "tests", "conf", "jobs")

OURS: Final = (
    Ablation(
        mark="HANDSHAKE",
        rule="A put that was written reads its bucket's row: a sealed one may have missed it.",
        old="        if is_written:\n            row = await lane",
        new=(
            "        if is_written:\n"
            "            return Proof(kept=Runs.span(0, lane.bucket_size - 1), is_open=True)\n"
            "            row = await lane"
        ),
        tests=(),
    ),
    Ablation(
        mark="CLOCK",
        rule="Leases go by the coordinators' clock, not by each client's own.",
        old="        anchor = self._anchor\n        if anchor is None or",
        new=(
            "        return self._base.now_us()\n"
            "        anchor = self._anchor\n"
            "        if anchor is None or"
        ),
        tests=(),
    ),
    Ablation(
        mark="MARGIN",
        rule="A lease is claimed again only after its end.",
        old="    return now_us > lease.until_us + EXPIRY_MARGIN_US\n",
        new="    return now_us > lease.until_us - 4 * EXPIRY_MARGIN_US\n",
        tests=(),
    ),
    Ablation(
        mark="RECEIPT",
        rule="An ack asks for the lease: a receipt acks its own delivery, no later one.",
        old="        return AckResult.STALE\n",
        new="        return AckResult.ACKED\n",
        tests=(),
    ),
)


def rule(name: str) -> Ablation:
    """By mark, or by mark and number.

    Raises:
        LookupError: There is none of that name.
    """
    mark, _, number = name.partition(".")
    found = [one for one in (*OURS, *ABLATIONS) if one.mark == mark]
    if not found or not 1 <= int(number or 1) <= len(found):
        raise LookupError(f"no rule {name!r} is taken away by tests/ablations.py, or here")
    return found[int(number or 1) - 1]


def copy_without(one: Ablation, directory: Path) -> Path:
    """A copy of what the children need, and the rule is not in it; ``directory`` itself."""
    for name in COPIED:
        source, target = ROOT / name, directory / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    module = directory / one.path
    module.write_text(one.applied_to(module.read_text("utf-8")), "utf-8")
    return directory
