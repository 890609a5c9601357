"""``jobs/repair.py`` as it is, on a small Spark of its own, with the dials of a storm; what it has
to do goes through Spark's tasks, however little it is."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from cassieq_spark.spark.jobs import repair
from tests.storm import dials
from tests.storm.processes import ROOT


def end_with_the_runner() -> None:
    """Nobody writes to standard input: it ends when the runner does, however that happens."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


threading.Thread(target=end_with_the_runner, daemon=True).start()
dials.install_by_variable()
repair.FEW_SHARES = 0  # type: ignore[misc]  # else the driver does it alone
repair.BUCKETS_PER_SHARE = 32  # type: ignore[misc]  # as above
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    "--master local[1,3] --driver-memory 450m --conf spark.ui.enabled=false "
    f"--driver-java-options '{os.environ['TEST_JAVA_OPTIONS']}' pyspark-shell"
)
script = str(ROOT / "jobs" / "repair.py")
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
