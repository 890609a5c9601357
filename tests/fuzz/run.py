"""Runs the parts side by side, and looks at what is left afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

import psutil

from cassieq_spark.testing import ConditionNotMet, wait_until
from tests.fuzz.described import Described
from tests.fuzz.good import Ledger, cycle
from tests.fuzz.sqs import Sender
from tests.fuzz.stage import Stage
from tests.fuzz.wires import HELD_S, SLACK_S, Wires

PARTS: Final = {"sqs": Sender, "rest": Described, "wires": Wires}
ENDS_S: Final = 120.0
"""In which a part ends once the run is over: its requests have a time-out of half of that."""


def fuzz(stage: Stage, seed: int, parts: Iterable[str] = PARTS) -> None:
    """Attack until the stage's time is over, and then check that all is as before."""
    began = time.monotonic()
    ledgers = [Ledger(stage, at) for at in range(len(stage.accounts))]
    threads = [
        threading.Thread(target=stage.watch, name="fuzz-watch", daemon=True),
        threading.Thread(target=stage.plant_again, name="fuzz-plant", daemon=True),
        *(threading.Thread(target=one.run, name="fuzz-good", daemon=True) for one in ledgers),
        *(
            threading.Thread(
                target=PARTS[name](stage).run,
                args=(seed * 1_000_003,),
                name=f"fuzz-{name}",
                daemon=True,
            )
            for name in parts
        ),
    ]  # fmt: skip
    stage.warmed_up()
    for one in threads:
        one.start()
    stage.over.wait(stage.seconds)
    stage.deadline = 0.0
    for one in threads[2:]:
        one.join(ENDS_S)
        if one.is_alive():
            stage.book.find("fuzzer", f"{one.name} does not end")
    stage.over.set()
    for one in threads[:2]:
        one.join(ENDS_S)
    _afterwards(stage, ledgers)
    stage.summarise(minutes=round((time.monotonic() - began) / 60, 1), seed=seed, is_over=True)


def _afterwards(stage: Stage, ledgers: list[Ledger]) -> None:
    for one in ledgers:
        one.drain()
    cycle(stage)
    for gateway in stage.gateways.values():
        try:
            wait_until(lambda gateway=gateway: not gateway.ports(), deadline_s=HELD_S + SLACK_S)
        except (ConditionNotMet, psutil.Error) as error:
            stage.book.find("left", f"connections of {gateway.name}", error=str(error))
    stage.summarise(is_over=False)
    report = stage.client.verify()
    stage.book.figures["verify: queues"] = report.queues
    for finding in report.findings:
        stage.book.find("verify", str(finding)[:200])
    for problem in report.problems:
        stage.book.find("verify", problem[:200])
    stage.terminate()
