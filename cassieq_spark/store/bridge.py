"""`Bridge` brings the answers of a transport to an event loop, page after page."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cassieq_spark.store.translate import DRIVER_ERRORS

if TYPE_CHECKING:
    from cassieq_spark.store.transport import Page, Request, Transport

Answer = asyncio.Future["list[Any] | BaseException"]
"""The rows of all pages, or the driver's error: as a value, since not every answer is awaited."""


class Bridge:
    """Sends requests from an event loop, and wakes it once for all answers that came together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: deque[tuple[Answer, list[Any] | BaseException]] = deque()
        self._is_woken = False

    def send(self, transport: Transport, request: Request) -> Answer:
        """Send a request, and those for the pages that follow."""
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        found: list[Any] = []

        def note(told: Page | BaseException) -> None:
            if isinstance(told, BaseException):
                self._tell(loop, answer, told)
                return
            found.extend(told.rows)
            if told.following is None:
                self._tell(loop, answer, found)
            else:
                transport.send(replace(request, page=told.following), note)

        transport.send(request, note)
        return answer

    def _tell(
        self, loop: asyncio.AbstractEventLoop, answer: Answer, found: list[Any] | BaseException
    ) -> None:
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - without an error in other threads
            _set(answer, found)
            return
        with self._lock:
            self._told.append((answer, found))
            is_woken, self._is_woken = self._is_woken, True
        if not is_woken:
            loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            told, self._told = self._told, deque()
            self._is_woken = False
        for answer, found in told:
            _set(answer, found)


def _set(answer: Answer, found: list[Any] | BaseException) -> None:
    if answer.done():
        return
    if isinstance(found, BaseException) and not isinstance(found, DRIVER_ERRORS):
        answer.set_exception(found)  # a mistake of ours, or of a test
    else:
        answer.set_result(found)
