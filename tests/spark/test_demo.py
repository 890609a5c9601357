"""`make demo`: every flight arrives, and the plot of the run is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LEG = re.compile(r"│ (\S.*?) +│ +([\d,]+) │ +[\d.]+ │ +([\d,]+) │")


@pytest.mark.long
def test_every_count_agrees_and_the_run_is_drawn(
    pytestconfig: pytest.Config, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    root = pytestconfig.rootpath
    ended = subprocess.run(
        [sys.executable, str(root / "jobs" / "demo.py"), "--plot", str(tmp_path / "run.svg")],
        cwd=tmp_path, env={**os.environ, **spark_environment, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert 0 == ended.returncode, ended.stdout + ended.stderr[-5_000:]
    assert "Every count agrees with the CSV file: 336,776 flights" in ended.stdout
    table = ended.stdout.partition("Legs")[2].partition("Queues (")[0]
    (_, put, put_rate), (_, read, read_rate), (_, late, late_rate) = LEG.findall(table)
    assert ("336,776", "336,776") == (put, read)
    assert f"flights, {late} of them late." in ended.stdout
    assert "0" not in {put_rate, read_rate, late_rate}
    assert f"are drawn in {tmp_path / 'run.svg'}\n" in ended.stdout
    ids = {one.get("id") or "" for one in ET.parse(tmp_path / "run.svg").iter()}  # noqa: S314
    assert {"depth-flights", "depth-late-flights", "lag-flights", "lag-late-flights"} <= ids
    assert 4 + 7 <= len([one for one in ids if one.startswith("rate-")])
