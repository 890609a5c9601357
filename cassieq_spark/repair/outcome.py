"""Remember when passes of repair and verify ended and what they found, for alerts."""

from __future__ import annotations

from typing import Final

from cassieq_spark import metrics
from cassieq_spark.metrics import Family
from cassieq_spark.repair.report import RepairReport, VerifyReport

Samples = list[tuple[tuple[str, ...], float]]

REPAIR, VERIFY = "repair", "verify"

_last: dict[Family, dict[tuple[str, ...], float]] = {one: {} for one in metrics.OF_PASSES}


def expect(work: str) -> None:
    """Note that this process will run such passes: until one has ended, its time is 0."""
    _last[metrics.PASS_ENDED].setdefault((work,), 0)


def note(report: RepairReport | VerifyReport, now_us: int) -> None:
    """Remember a pass over all queues that has ended."""
    is_verify = isinstance(report, VerifyReport)
    labels = (VERIFY if is_verify else REPAIR,)
    _last[metrics.PASS_ENDED][labels] = now_us / 1e6
    _last[metrics.PASS_PROBLEMS][labels] = len(report.problems)
    if isinstance(report, VerifyReport):
        _last[metrics.VERIFY_FINDINGS][()] = len(report.findings)


def samples() -> dict[Family, Samples]:
    """Return the results of this process's last passes; nothing about passes that it never runs."""
    return {family: list(known.items()) for family, known in _last.items()}


_HEAD: Final = "# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def as_text() -> str:
    """Return the same in Prometheus' text format, for a process that ends before a scrape."""
    parts: list[str] = []
    for family, known in samples().items():
        head = _HEAD.format(name=family.exported, meaning=family.meaning, kind=family.kind)
        parts += [head] if known else []
        for texts, value in known:
            pairs = ",".join(f'{k}="{v}"' for k, v in zip(family.labels, texts, strict=True))
            parts.append(f"{family.exported}{{{pairs}}} {value!r}\n")
    return "".join(parts)
