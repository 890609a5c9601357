"""Both ends of a Spark session in a child process: commands and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
STOP_S = 60.0


class CommandFailed(RuntimeError):
    """A command failed in the session of ``side``."""

    def __init__(self, side: str, why: str, said: str) -> None:
        super().__init__(f"{side}: {why}\n{said}")
        self.side = side
        self.why = why


class SparkChild:
    """The parent's end; a context manager. A command is a method of `bench.spark_work.Work`.

    Args:
        python: The interpreter of the side's environment.
        side: ``cassieq`` or ``kafka``, with what its door takes.
        settings: More settings of the session.
        is_named: Whether PYSPARK_PYTHON names the interpreter.
    """

    def __init__(
        self,
        python: str,
        side: str,
        door: Mapping[str, Any],
        *,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        is_named: bool = True,
    ) -> None:
        # Its path has this folder alone: the other side's PySpark would find our format by its name
        # beside it, and fail to import it.
        path = folder / "path"
        path.mkdir(parents=True)
        (path / "bench").symlink_to(ROOT / "bench")
        self.side = side
        self._log = folder / "child.log"
        about = {"side": side, "door": door, "folder": str(folder), "settings": settings or {}}
        environment = os.environ | {"PYTHONPATH": str(path), "PYSPARK_PYTHON": python}
        environment.pop("PYSPARK_DRIVER_PYTHON", None)
        if not is_named:
            del environment["PYSPARK_PYTHON"]
            environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"  # as activated
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "bench.spark_child", json.dumps(about)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment,
                text=True,
            )
        self.started = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End it: it stops its session at the end of its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def do(self, command: str, **arguments: Any) -> Any:
        """Carry out a command.

        Raises:
            CommandFailed: It failed there.
            RuntimeError: The session has ended.
        """
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(json.dumps({"do": command, "with": arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._process.kill()
            self._process.wait(STOP_S)
            raise RuntimeError(f"the Spark session of {self.side} ended:\n{self._said()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CommandFailed(self.side, answer["error"], self._said())
        return answer["value"]

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-3_000:]


def main(arguments: Sequence[str]) -> int:
    """The child's end."""
    # Spark's JVM inherits standard output and may print there: answers go where it cannot.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    from bench.spark_doors import CassieqDoor, KafkaDoor  # noqa: PLC0415 - after the above
    from bench.spark_work import Work  # noqa: PLC0415 - as above

    def tell(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    about = json.loads(arguments[0])
    doors = {"cassieq": CassieqDoor, "kafka": KafkaDoor}
    work = Work(doors[about["side"]](**about["door"]), about["folder"], about["settings"])
    tell(value={"started_s": work.started_s} | work.versions())
    commands: Queue[str] = Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    while line := commands.get():
        asked = json.loads(line)
        try:
            value = getattr(work, asked["do"])(**asked["with"])
        except Exception:  # noqa: BLE001 - the parent tells it
            tell(error=traceback.format_exc())
        else:
            tell(value=value)
    work.close()
    return 0


def _listen(commands: Queue[str]) -> None:
    """Hand on each line. At the end the parent is gone, whatever Spark is waiting for just now."""
    for line in sys.stdin:
        commands.put(line)
    commands.put("")
    threading.Event().wait(STOP_S / 2)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
