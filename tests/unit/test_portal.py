"""Ordinary code calls the engine's coroutines (ADR 42)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import SimpleNamespace

import pytest

from cassieq_spark.errors import UsageError
from cassieq_spark.log import event
from cassieq_spark.store import caller, portal
from cassieq_spark.testing import wait_until


async def thread_name() -> str:
    return threading.current_thread().name


def test_a_coroutine_runs_in_one_thread_with_the_callers_context() -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nobody's")
    mine.set("the caller's")

    async def look() -> str:
        return mine.get()

    assert "cassieq-engine" == portal.run(thread_name())
    assert "the caller's" == portal.run(look())


def test_an_error_comes_out_where_it_is_waited_for_with_its_own_traceback() -> None:
    async def fail() -> None:
        raise ValueError("deep inside")

    with pytest.raises(ValueError, match="deep inside") as caught:
        portal.run(fail())
    assert "fail" in [entry.name for entry in caught.traceback]


def test_a_blocking_call_from_the_engines_own_thread_is_refused() -> None:
    async def nested() -> str:
        return portal.run(thread_name())

    with pytest.raises(UsageError, match="wait for itself"):
        portal.run(nested())


def test_a_users_function_runs_in_the_thread_that_waits_and_may_make_calls() -> None:
    def users() -> tuple[str, str]:
        return threading.current_thread().name, portal.run(thread_name())

    async def call() -> tuple[str, str]:
        return await caller.outside(users)

    assert (threading.current_thread().name, "cassieq-engine") == portal.run(call())


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
def test_whatever_a_users_function_raises_ends_the_call_and_not_the_engine(
    error: type[BaseException],
) -> None:
    def users() -> None:
        raise error

    async def call() -> None:
        await caller.outside(users)

    expected = RuntimeError if error is StopIteration else error
    with pytest.raises(expected):
        portal.run(call())
    assert "cassieq-engine" == portal.run(thread_name())


def test_work_in_a_thread_goes_on_without_a_word_if_nobody_waits_for_it_any_more() -> None:
    """An error of that thread fails this test."""
    goes_on, done = threading.Event(), threading.Event()

    def work() -> None:
        goes_on.wait(60)
        done.set()

    async def left() -> None:
        waiting = asyncio.ensure_future(caller.in_a_thread(work))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    portal.run(left())
    goes_on.set()
    assert done.wait(30)


def test_what_a_ctrl_c_leaves_goes_on_and_its_result_is_handed_back() -> None:
    goes_on, handed_back = threading.Event(), []

    async def work() -> str:
        caller.if_left(hand_back)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await caller.in_a_thread(lambda: goes_on.wait(60))
        return "leased"

    async def hand_back(found: str) -> None:
        handed_back.append(found)

    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert [] == handed_back
    goes_on.set()
    portal.run(portal.handed_back())
    assert ["leased"] == handed_back


def test_a_task_of_any_loop_waits_for_the_engine_in_its_own_context() -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nobody's")

    async def look() -> tuple[str, str]:
        return mine.get(), threading.current_thread().name

    async def fail() -> None:
        raise ValueError("deep inside")

    async def program() -> None:
        mine.set("the task's")
        assert ("the task's", "cassieq-engine") == await portal.asked(look())
        with pytest.raises(ValueError, match="deep inside"):
            await portal.asked(fail())

    asyncio.run(program())
    asyncio.run(program())  # and in another loop


@pytest.mark.parametrize("is_over", [False, True])
def test_what_a_cancelled_task_leaves_goes_on_and_its_result_is_handed_back(
    *, is_over: bool
) -> None:
    """Also if it was there already, and the task was cancelled in the same turn of its loop."""
    goes_on, handed_back = threading.Event(), []

    async def work() -> str:
        caller.if_left(hand_back)
        await caller.in_a_thread(lambda: goes_on.wait(60))
        return "leased"

    async def hand_back(found: str) -> None:
        handed_back.append(found)

    async def program() -> None:
        task = asyncio.create_task(portal.asked(work()))
        await asyncio.sleep(0.05)
        if is_over:
            goes_on.set()
            threading.Event().wait(0.2)  # the loop sees nothing of it
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert not hasattr(caught.value, "__notes__")

    asyncio.run(program())
    goes_on.set()
    wait_until(lambda: ["leased"] == handed_back)


def test_a_cancelled_task_is_told_that_what_it_began_goes_on() -> None:
    goes_on, has_ended = threading.Event(), threading.Event()

    async def put() -> None:
        await caller.in_a_thread(lambda: goes_on.wait(60))
        has_ended.set()

    async def program() -> list[str]:
        task = asyncio.create_task(portal.asked(put()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value.__notes__

    (note,) = asyncio.run(program())
    assert "put had begun when it was cancelled" in note
    goes_on.set()
    assert has_ended.wait(60)


def test_work_that_waits_hears_at_once_that_its_caller_has_left() -> None:
    has_ended = threading.Event()

    async def work() -> None:
        left = asyncio.Event()
        with caller.when_left(left.set):
            await left.wait()
        has_ended.set()

    async def program() -> None:
        task = asyncio.create_task(portal.asked(work()))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(program())
    assert has_ended.wait(60)


def test_work_that_goes_on_for_long_ends_when_its_caller_has_left() -> None:
    rounds, has_ended = 0, threading.Event()

    async def work() -> None:
        nonlocal rounds
        try:
            while True:
                caller.check()
                rounds += 1
                if rounds == 3:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(0.01)
        except caller.CallerLeft:
            has_ended.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert has_ended.wait(60)


def test_a_block_is_left_as_it_was_entered() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def block() -> AsyncIterator[str]:
        steps.append(await thread_name())
        try:
            yield "inner"
        except ValueError:
            steps.append("failed")
            raise
        finally:
            steps.append("left")

    with portal.entered(block()) as inner:
        assert "inner" == inner
    with pytest.raises(ValueError, match="on purpose"), portal.entered(block()):
        raise ValueError("on purpose")
    assert ["cassieq-engine", "left", "cassieq-engine", "failed", "left"] == steps


def test_a_generator_that_is_left_half_read_is_closed() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.set()

    assert list(range(10)) == list(portal.iterate(numbers()))
    closed.clear()
    half = portal.iterate(numbers())
    assert 0 == next(half)
    del half
    assert closed.wait(60)


def test_a_log_handler_that_makes_a_call_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("cassieq_spark.test_portal")
    said: list[str] = []

    class Calling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.funcName} {portal.run(thread_name())}")

    async def work() -> None:
        event(logger, "queue_created", queue="orders")

    handler = Calling()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger=logger.name):
            portal.run(work())
    finally:
        logger.removeHandler(handler)
    assert ["work cassieq-engine"] == said
    assert ["queue_created queue=orders"] == [one.getMessage() for one in caplog.records]


@pytest.mark.parametrize(
    ("name", "ask"),
    [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")],
)
def test_threads_that_somebody_has_replaced_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, ask: str
) -> None:
    patched = SimpleNamespace(**{ask: lambda _: True})
    monkeypatch.setitem(sys.modules, name, patched)  # type: ignore[arg-type]
    monkeypatch.setattr(portal, "_portal", None)
    work = thread_name()
    with pytest.raises(UsageError, match=f"{name} has replaced"):
        portal.run(work)


FORKS = """
import os
from cassieq_spark.store import portal

async def pid():
    return os.getpid()

assert os.getpid() == portal.run(pid())
child = os.fork()
if child == 0:
    os._exit(0 if os.getpid() == portal.run(pid()) else 1)
status = os.waitpid(child, 0)[1]
assert os.getpid() == portal.run(pid())
print(os.waitstatus_to_exitcode(status))
"""

THREADS_GO_ON = """
import threading, time
from cassieq_spark.store import caller, portal

async def work():
    return await caller.in_a_thread(lambda: "done")

def later():
    threading.main_thread().join()
    print(portal.run(work()))

portal.run(work())
threading.Thread(target=later).start()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [pytest.param(FORKS, "0", id="a fork"), pytest.param(THREADS_GO_ON, "done", id="threads")],
)
def test_a_child_has_its_own_and_threads_may_outlive_the_main_one(
    program: str, printed: str
) -> None:
    """A pool of threads takes nothing more when the main thread has ended; the engine does."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ,
    )
    assert (0, printed) == (ended.returncode, ended.stdout.strip()), ended.stderr


def test_one_thread_serves_all_callers() -> None:
    before = [one.name for one in threading.enumerate()].count("cassieq-engine")
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda: names.append(portal.run(thread_name()))) for _ in range(8)
    ]
    for one in threads:
        one.start()
    wait_until(lambda: len(names) == 8)
    for one in threads:
        one.join()
    assert {"cassieq-engine"} == set(names)
    assert max(1, before) == [one.name for one in threading.enumerate()].count("cassieq-engine")
