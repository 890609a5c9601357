"""Seeds of the simulated world, in virtual time; see docs/design/simulation.md."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.simulation.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = 60
AT_ONCE = 6

PROGRAM = """
import logging, sys
logging.disable(logging.CRITICAL)
from tests.simulation.run import run
print(run(int(sys.argv[1])).digest)
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A world's faults are logged as a program's would be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_nothing_is_wrong_in_a_seed(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert (seed, []) == (seed, run(seed).anomalies)


def test_the_same_seed_is_the_same_run_in_another_process_with_other_hashes() -> None:
    def digest(hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, "7"],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.strip()

    here = run(7)
    assert here.statements > 500
    assert here.digest == digest("1") == digest("2")
    assert here.digest != run(8).digest
