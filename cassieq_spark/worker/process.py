"""`Process` is one process that calls the function, as its parent sees it.

It is built on a socket and a child process of the standard library. Pools that exist share locks
or a queue among their processes: with Pebble 5.2 an idle process that is killed breaks the pool,
with loky 3.7 and concurrent.futures one death fails what all others are working on. Here a death
says something about the messages of one process, and nothing about the others.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Final, Self

from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.child import HEAD, Answer

MODULE: Final = "cassieq_spark.worker"
"""The module that the child runs; with ``-m`` it finds modules of the current directory."""

END_S: Final = 5.0
"""An idle process that does not end by itself within this time is killed."""

FOUND: Final = 0
"""The number of the answer that says whether the function is found."""


class Process:
    """A child process.

    Attributes:
        calls: The number of messages that it was given.
        memory_bytes: The memory that it had after the last one.
    """

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Prepare; see `start`."""
        self._child, self._reader, self._writer = child, reader, writer
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self.found = self._expected(FOUND)
        self.calls = self.memory_bytes = 0
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(cls, function: str, concurrency: int, *logs: str) -> Self:
        """Start a process; ``found`` will say whether it can be used.

        Args:
            concurrency: The number of messages that it works on at once; 1: one after the other.
            logs: The level and the form of its log.

        Raises:
            OSError: No process could be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # In a process group of its own: Ctrl-C in a terminal is for the parent to handle, and
            # what the function has started ends with it.
            try:
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", MODULE, function, str(theirs.fileno())),
                    *(str(concurrency), *logs),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(child, reader, writer)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.returncode is None and not self._tasks[0].done()

    @property
    def is_idle(self) -> bool:
        """Whether it works on no message."""
        return not self._answers

    async def call(self, message: Delivery) -> tuple[int, asyncio.Future[Answer]]:
        """Give it a message. Return the number of the call, and its answer to come."""
        self.calls += 1
        number = self.calls
        answer = self._expected(number)
        if self._tasks[0].done():  # nobody listens any more
            self._end_calls()
        await self._send((number, message))
        return number, answer

    async def cancel(self, number: int) -> None:
        """Cancel a call of a process that works on several messages at once."""
        await self._send((number, None))

    async def end(self) -> None:
        """End it; it is idle. Exit handlers of the function's module run."""
        await self._send(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._child.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill it with all that it has started. Idempotent."""
        self._kill()
        await asyncio.wait(self._tasks)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    async def _send(self, asked: object) -> None:
        data = pickle.dumps(asked)
        with suppress(OSError):  # it has ended: `_listen` answers
            self._writer.write(HEAD.pack(len(data)) + data)
            await self._writer.drain()

    def _expected(self, number: int) -> asyncio.Future[Answer]:
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        return answer

    async def _listen(self) -> None:
        """Hand out answers until the connection ends; then say that for the calls that are left.

        A process that has closed the connection and goes on is killed.
        """
        with suppress(OSError, asyncio.IncompleteReadError, struct.error):
            while True:
                (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                answer: Answer = pickle.loads(await self._reader.readexactly(size))  # noqa: S301 - our own child
                self.memory_bytes = answer.memory_bytes
                self._answers.pop(answer.number).set_result(answer)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._child.wait()
        self._kill()
        await self._child.wait()
        self._end_calls()
        self._writer.close()

    def _end_calls(self) -> None:
        for number, answer in self._answers.items():
            answer.set_result(Answer(number=number, exit_code=self._child.returncode))
        self._answers.clear()

    async def _watch(self) -> None:
        """End the connection when the process has ended: what it has started may keep it open."""
        await self._child.wait()
        self._kill()
        with suppress(OSError):
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RD)
