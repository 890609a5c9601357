"""Imports once, then forks a process per request: a child costs a fork, not an interpreter.

A request is a line of JSON on standard input, its answer one on standard output:

    {"module": ..., "arguments": {...}, "output": ...}   a child runs module.main(**arguments)
    {"reap": pid}                                        the exit code of a child that has ended

No session and no thread of ours is in this process, so there is none that a fork could tear.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any


def run(request: dict[str, Any]) -> None:
    """In the child: its output to its own file, unbuffered, for what it wrote survives SIGKILL."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    code = 1
    try:
        importlib.import_module(request["module"]).main(**request["arguments"])
        code = 0
    except BaseException:  # noqa: BLE001 - the fork must never return into the zygote's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def answer(request: dict[str, Any]) -> int:
    """A pid, or an exit code."""
    if "reap" in request:
        return os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
    pid = os.fork()
    if pid == 0:
        run(request)
    return pid


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201 - the protocol
    os.killpg(0, signal.SIGKILL)  # the test is over, or dead: nobody else would end the children
