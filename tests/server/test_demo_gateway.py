"""`make demo-gateway`: the programs share the queue, and the demo can say that a count is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_each_order_is_handled_once_by_one_of_two(
    pytestconfig: pytest.Config, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    root = pytestconfig.rootpath
    ended = subprocess.run(
        [sys.executable, str(root / "jobs" / "demo_gateway.py"), "--orders", "400"],
        cwd=tmp_path, env={**os.environ, **spark_environment, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert 0 == ended.returncode, ended.stdout + ended.stderr[-5_000:]
    assert "Every count agrees: 400 orders, each of them once." in ended.stdout
    assert "the Celery worker" in ended.stdout
