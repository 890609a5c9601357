"""``python -m tests.fuzz.probed FILE serve ...``: a gateway that writes down its loop's stalls.

Each callback of the event loop is measured by the processor time of its thread, which other
processes do not change. What it may take follows from the bytes of the request that it works for.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import threading
import time
from asyncio.events import Handle
from bisect import bisect_left
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cassieq_spark.cli import main
from cassieq_spark.server.app import Gateway

EDGES_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
ALWAYS_MS: Final = 10.0
JSON_MS, FORM_MS = 50.0, 200.0
"""For each MiB, as docs/reliability.md has it."""
COLLECTION_MS: Final = 50.0
FACTOR: Final = 3.0
"""So much more is a finding: a busy machine's caches cost up to a double."""
WORST: Final = 20

asked: ContextVar[dict[str, Any] | None] = ContextVar("asked", default=None)


class Noting:
    """ASGI middleware: tells the probe which request a task works for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        target = headers.get(b"x-amz-target", b"").decode("latin-1")[:60]
        noted = {
            "method": scope["method"],
            "path": scope["path"][:100],
            "target": target,
            "each_ms": JSON_MS if target or scope["path"].startswith("/v1") else FORM_MS,
            "bytes": sum(len(a) + len(b) for a, b in scope["headers"]) + len(scope["query_string"]),
        }
        asked.set(noted)

        async def receiving() -> Message:
            message = await receive()
            noted["bytes"] += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            noted["bytes"] += len(message.get("body", b""))
            noted["status"] = message.get("status", noted.get("status"))
            await send(message)

        return await self._app(scope, receiving, sending)


class Probe:
    """What the loop of the main thread has done."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._cpu = [0] * (len(EDGES_MS) + 1)
        self._wall = [0] * (len(EDGES_MS) + 1)
        self._callbacks = self._over = 0
        self._longest = {"cpu_ms": 0.0, "wall_ms": 0.0, "gc_ms": 0.0}
        self._worst: list[dict[str, Any]] = []
        self._gc_began = self._gc_s = 0.0  # of the loop's thread
        self._main = threading.get_ident()

    def install(self) -> None:
        run = Handle._run

        def measured(handle: Handle) -> None:
            if threading.get_ident() != self._main:
                return run(handle)
            cpu, wall, collected = time.thread_time(), time.perf_counter(), self._gc_s
            try:
                return run(handle)
            finally:
                cpu_ms = 1e3 * (time.thread_time() - cpu)
                wall_ms = 1e3 * (time.perf_counter() - wall)
                self._note(handle, cpu_ms, wall_ms, 1e3 * (self._gc_s - collected))

        Handle._run = measured  # type: ignore[method-assign]
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._write_often, name="probe", daemon=True).start()

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._main:
            return
        now = time.thread_time()
        if phase == "start":
            self._gc_began = now
        else:
            self._gc_s += now - self._gc_began

    def _note(self, handle: Handle, cpu_ms: float, wall_ms: float, gc_ms: float) -> None:
        self._callbacks += 1
        self._cpu[bisect_left(EDGES_MS, cpu_ms)] += 1
        self._wall[bisect_left(EDGES_MS, wall_ms)] += 1
        self._longest["cpu_ms"] = max(self._longest["cpu_ms"], cpu_ms)
        self._longest["wall_ms"] = max(self._longest["wall_ms"], wall_ms)
        self._longest["gc_ms"] = max(self._longest["gc_ms"], gc_ms)
        if cpu_ms <= ALWAYS_MS:
            return
        request = handle._context.get(asked) or {}
        allowed_ms = ALWAYS_MS + request.get("each_ms", 0.0) * request.get("bytes", 0) / 2**20
        self._over += cpu_ms > allowed_ms
        # A collection of all garbage is nobody's request. How long they take is a figure, too.
        times = max((cpu_ms - gc_ms) / allowed_ms, gc_ms / COLLECTION_MS)
        self._worst.append(
            {
                "times": round(times, 2),
                "cpu_ms": round(cpu_ms, 1),
                "wall_ms": round(wall_ms, 1),
                "gc_ms": round(gc_ms, 1),
                "callback": _name(handle._callback),
                **request,
            }
        )
        self._worst = sorted(self._worst, key=lambda one: -one["times"])[:WORST]

    def _write_often(self) -> None:
        while True:
            threading.Event().wait(1.0)
            said = {
                "callbacks": self._callbacks,
                "edges_ms": EDGES_MS,
                "cpu": self._cpu,
                "wall": self._wall,
                "over": self._over,
                "longest": self._longest,
                "threads": sorted(one.name for one in threading.enumerate()),
                "worst": self._worst,
            }
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(said))
            new.replace(self._file)


def _name(callback: Any) -> str:
    """A callback, or the coroutine of the task that it runs."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())}"
    return re.sub(" at 0x[0-9a-f]+", "", repr(callback))[:200]


if __name__ == "__main__":
    probe = Probe(Path(sys.argv.pop(1)))
    build = Gateway.app

    def noting(gateway: Gateway) -> Any:
        return Noting(build(gateway))

    Gateway.app = noting  # type: ignore[method-assign]
    assert asyncio.events.Handle is Handle
    probe.install()
    main()
