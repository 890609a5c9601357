"""``python -m tests.fuzz --minutes 5``: attack running gateways; see docs/reliability.md.

Exit code 0: nothing was found. 1: something was; it is kept with what shows it again.
"""

# ruff: noqa: T201 - a program that prints what it does

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

from cassieq_spark.entropy import generator
from cassieq_spark.testing import EmbeddedCassandra
from tests.fuzz.book import Book
from tests.fuzz.run import PARTS, fuzz
from tests.fuzz.stage import Stage


def main() -> int:
    """Run it; the exit code."""
    given = _parser().parse_args()
    # Whoever ends it ends its gateways, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = generator().randrange(1 << 20) if given.seed is None else given.seed
    directory = Path(given.directory or tempfile.mkdtemp(prefix="cassieq-fuzz-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {given.minutes:g} minutes, in {directory}", flush=True)
    book = Book(directory)
    with EmbeddedCassandra() as node:
        try:
            with Stage(node.contact_points, "cassieq_fuzz", book, 60 * given.minutes) as stage:
                fuzz(stage, seed, given.parts)
        finally:
            node.kill()
    print(json.dumps({"findings": book.findings, "counts": book.counts}, indent=1))
    print(f"{len(book.findings)} kinds of findings; {directory / 'summary.json'}")
    return 1 if book.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="of what is drawn; default: drawn, too")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument(
        "--directory", help="for findings and the summary; default: a temporary one"
    )
    return parser


if __name__ == "__main__":
    code = main()
    left = [one.name for one in threading.enumerate() if not one.daemon]
    sys.stdout.flush()
    if len(left) > 1:
        print(f"threads that did not end: {left}", file=sys.stderr)
    os._exit(code)  # a thread that hangs was found already, and must not hold up the end
