"""What a run has seen: findings with what shows them again, and figures. Thread-safe."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

KEPT: Final = 3
"""So many reproductions of each kind are kept; the others are counted."""

_BATCH_FAILURE: Final = re.compile(rb"InternalFailure|InternalError\b")
_HEAD: Final = re.compile(rb"HTTP/1\.[01] (\d\d\d) [^\r\n]*\r\n")
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_BAD_LOG: Final = re.compile(
    r"Traceback|request_failed|never retrieved|Exception in|Task exception"
)


def hidden_forms(secret: str) -> tuple[bytes, bytes]:
    """A secret as an answer could show it: as it is, and as base64."""
    return secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1]


def wrong(status: int, answer: bytes, hidden: Iterable[bytes]) -> str | None:
    """What is wrong with an answer, whatever was asked.

    Args:
        hidden: What the caller must not see.
    """
    if status >= 500 and status != 503:
        return f"status {status}"
    if _BATCH_FAILURE.search(answer):
        return "an entry failed by a fault of the gateway"
    if any(one in answer for one in hidden):
        return "data of another account"
    return None


def framed(answer: bytes, methods: Iterable[str]) -> str | None:
    """What is wrong with the bytes of a connection: whole answers, no more than requests.

    The last one may be cut off.
    """
    left = list(methods)
    while answer:
        head = _HEAD.match(answer)
        if head is None:
            # The beginning of one is right: what came next was not read.
            return None if len(answer) < 20 and b"HTTP/1.1 ".startswith(answer[:9]) else "no answer"
        end = answer.find(b"\r\n\r\n")
        if end < 0:
            return None
        if head[1].startswith(b"1"):
            answer = answer[end + 4 :]
            continue
        if not left:
            return "more answers than requests"
        length = _LENGTH.search(answer[: end + 2])
        size = int(length[1]) if length and left.pop(0) != "HEAD" else 0
        answer = answer[end + 4 + size :]
    return None


def _key(what: str, shown: dict[str, Any]) -> str:
    return repr((what, sorted(shown.items()))) if what.startswith("stall") else what


@dataclass
class Book:
    """Findings and figures of one run."""

    directory: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _read: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.directory / "findings").mkdir(parents=True, exist_ok=True)

    def count(self, *what: object) -> None:
        with self._lock:
            self.counts[" ".join(map(str, what))] += 1

    def most(self, what: str, value: float) -> None:
        """Note the largest of a figure."""
        with self._lock:
            self.figures[what] = round(max(value, self.figures.get(what, value)), 3)

    def known(self, kind: str, about: str, shown: dict[str, Any]) -> None:
        """Note what is no finding; the same again is none either."""
        self._seen.add(_key(f"{kind}: {about}", shown))

    def find(self, kind: str, about: str, **shown: Any) -> None:
        """Note what is wrong, and keep what shows it again; the same again is nothing new."""
        with self._lock:
            what = f"{kind}: {about}"
            key = _key(what, shown)
            if kind == "stall" and key in self._seen:
                return
            self._seen.add(key)
            self.findings[what] += 1
            if self.findings[what] > KEPT:
                return
            number = sum(min(KEPT, one) for one in self.findings.values())
            file = (
                self.directory / "findings" / f"{number:03}-{re.sub('[^a-z0-9]+', '-', kind)}.json"
            )
            file.write_text(
                json.dumps({"kind": kind, "about": about, **shown}, indent=1, default=repr)
            )
        print(f"FOUND {what} ({file})", flush=True)  # noqa: T201 - a program

    def read_log(self, file: Path) -> None:
        """Look at what a gateway has written since."""
        with file.open("rb") as log:
            log.seek(self._read.get(file, 0))
            new = log.read()
        end = new.rfind(b"\n") + 1
        self._read[file] = self._read.get(file, 0) + end
        lines = new[:end].decode(errors="replace").splitlines()
        for at, line in enumerate(lines):
            if _BAD_LOG.search(line):
                about = re.sub(r"[0-9a-f-]{8,}|\d+", "#", line)[-120:]
                self.find("log", about, lines=lines[max(0, at - 2) : at + 40])

    def write(self, **more: Any) -> None:
        """Write the summary so far."""
        with self._lock:
            said = {
                **more,
                "findings": dict(self.findings.most_common()),
                "figures": dict(sorted(self.figures.items())),
                "counts": dict(sorted(self.counts.items())),
            }
        new = self.directory / "summary.new"
        new.write_text(json.dumps(said, indent=1) + "\n")
        new.replace(self.directory / "summary.json")
