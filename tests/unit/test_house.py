"""The house stays small: no file of the package grows beyond one idea."""

from __future__ import annotations

from pathlib import Path

import cassieq_spark

LIMIT_LINES = 400
PACKAGE = Path(cassieq_spark.__file__).parent


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text("utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }

    assert len(lengths) > 50
    assert {} == {name: lines for name, lines in lengths.items() if lines > LIMIT_LINES}
