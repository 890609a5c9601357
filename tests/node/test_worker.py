"""``cassieq worker``: what becomes of a message, whatever becomes of the function and processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import wait_until
from tests.fixtures.commands import CommandLine, Ended, end
from tests.fixtures.processes import has_ended

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

MODULE = """
import asyncio, os, signal, subprocess, sys, threading
from pathlib import Path

HERE = Path(__file__).parent

def say(what, message):
    # One write to a file opened for appending is whole, whoever else writes.
    text = f"{what} {os.getpid()} {message.body.decode()} {message.delivery_count}\\n"
    with (HERE / "said").open("ab", buffering=0) as file:
        file.write(text.encode())

def wait_for(name):
    while not (HERE / name).exists():
        threading.Event().wait(0.02)

def note(message):
    say("note", message)

async def note_later(message):
    await asyncio.sleep(0.01)
    say("later", message)

def fail_twice(message):
    say("tried", message)
    if message.delivery_count < 3:
        raise ValueError("not yet")

def fail(message):
    say("tried", message)
    raise ValueError("never")

def rule(message):
    from cassieq_spark import Reject, Retry
    say("tried", message)
    if message.body == b"reject":
        raise Reject("no such order")
    if message.body == b"broken":
        raise Reject("broken") from ValueError("its cause")
    if message.body == b"lost" and message.delivery_count == 1:
        wait_for("taken")
        raise Retry(after=600)
    if len((HERE / "said").read_text().split(message.body.decode())) <= 6:
        raise Retry(after=0.05, counted=False)

def leave(message):
    say("tried", message)
    sys.exit(0)

def die(message):
    say("tried", message)
    if message.body == b"bad":
        how = (HERE / "how").read_text()
        if how == "exit":
            os._exit(3)
        if how == "segfault":
            import ctypes
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)

def hang(message):
    say("tried", message)
    if message.body == b"bad":
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (HERE / "program").write_text(str(program.pid))
        threading.Event().wait(600)

RUNNING = 0

async def count(message):
    global RUNNING
    RUNNING += 1
    await asyncio.sleep(0.1)
    say(f"of-{RUNNING}", message)
    RUNNING -= 1

async def hang_later(message):
    say("tried", message)
    if message.body == b"blocks":
        threading.Event().wait(600)
    if message.body == b"bad":
        await asyncio.sleep(600)
    await asyncio.sleep(1)

async def wait_for_go_later(message):
    say("began", message)
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    say("ended", message)

def wait_for_go(message):
    say("began", message)
    wait_for("go")
    say("ended", message)
"""


class Workers:
    """Workers of one queue, started as a user starts them."""

    def __init__(self, cli: CommandLine, queue: cassieq.Queue, directory: Path) -> None:
        self._cli = cli
        self._queue = queue
        self.directory = directory
        self.started: list[subprocess.Popen[bytes]] = []
        (directory / "work.py").write_text(MODULE, encoding="utf-8")

    def start(self, function: str, *arguments: str) -> subprocess.Popen[bytes]:
        name = function if ":" in function else f"work:{function}"
        process = self._cli.start(
            "worker",
            name,
            self._queue.name,
            *("--concurrency", "2", "--backoff", "0.1s", "--backoff-max", "0.3s", *arguments),
            cwd=self.directory,
        )
        self.started.append(process)
        return process

    def run(self, function: str, *arguments: str) -> Ended:
        return end(self.start(function, *arguments))

    def said(self, what: str | None = None) -> list[tuple[int, str, int]]:
        """(process id, body, delivery count) of all that functions have said."""
        file = self.directory / "said"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        rows = [line.split() for line in lines]
        return [(int(row[1]), row[2], int(row[3])) for row in rows if what in {None, row[0]}]

    def stop(self, process: subprocess.Popen[bytes]) -> Ended:
        process.send_signal(signal.SIGTERM)
        return end(process)

    def write(self, name: str, text: str = "") -> None:
        (self.directory / name).write_text(text, encoding="utf-8")


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    client.create_queue(f"{queue_name}.dead")
    return client.create_queue(
        queue_name,
        linger=0,
        visibility_timeout=600,
        max_deliveries=3,
        dead_letter_queue=f"{queue_name}.dead",
    )


@pytest.fixture
def workers(
    cassandra: EmbeddedCassandra, queue: cassieq.Queue, tmp_path: Path
) -> Iterator[Workers]:
    found = Workers(CommandLine(cassandra.contact_points), queue, tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def lie(queue: cassieq.Queue) -> tuple[int, int, int, int]:
    """Visible, invisible, delayed, dead."""
    stats = queue.stats()
    return stats.visible, stats.in_flight, stats.delayed, stats.dead


def test_a_function_that_runs_for_long_is_told_with_its_age_and_seldom(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"good")
    process = workers.start("wait_for_go", "--visibility-timeout", "1s", "--timeout", "10m")
    assert process.stderr is not None
    lines = []
    while "worker_function_runs" not in (line := process.stderr.readline().decode()):
        assert line, lines
        lines.append(line)
    workers.write("go")
    has(lambda: (0, 0, 0, 0) == lie(queue), "the ack")
    ended = workers.stop(process)

    assert f"queue={queue.name} message=" in line
    assert 10 <= float(line.rpartition("age_s=")[2]) < 20
    assert "worker_function_runs" not in ended.err
    assert not any("--timeout" in one for one in lines)


def has(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, deadline_s=60, describe=what)


@pytest.mark.sample
@pytest.mark.parametrize("function", ["note", "note_later"])
def test_each_message_is_worked_on_and_acked(
    workers: Workers, queue: cassieq.Queue, function: str
) -> None:
    bodies = [f"m{number}" for number in range(200)]
    queue.put_many([body.encode() for body in bodies])

    ended = workers.run(function, "--idle-timeout", "1s")

    assert 0 == ended.code, ended.err
    said = [line.partition(": ")[2] for line in ended.err.splitlines()]
    assert [
        f"There is no --timeout: a message is renewed for as long as work:{function} runs, "
        "for ever if it hangs",
        f"Calling work:{function} with 2 processes",
    ] == said
    assert Counter(bodies) == Counter(body for _, body, _ in workers.said())
    assert 2 == len({pid for pid, _, _ in workers.said()})
    assert (0, 0, 0, 0) == lie(queue)


def test_a_message_whose_function_fails_comes_again_until_it_does_not(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"m")

    ended = workers.run("fail_twice", "--idle-timeout", "3s")

    assert [1, 2, 3] == [count for _, _, count in workers.said()]
    assert (0, 0, 0, 0) == lie(queue)
    assert 0 == ended.code
    assert 2 == ended.err.count("WARNING cassieq_spark.worker: worker_failed")
    assert "ValueError: not yet" in ended.err


@pytest.mark.parametrize("function", ["fail", "leave"])
def test_a_message_that_always_fails_ends_in_the_dead_letters(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue, function: str
) -> None:
    queue.put(b"m")

    ended = workers.run(function, "--idle-timeout", "3s")
    client.repair(queue.name)

    assert [1, 2, 3] == [count for _, _, count in workers.said()]
    text = {"fail": "ValueError: never", "leave": "SystemExit: 0"}[function]
    assert 3 == ended.err.count(f'error="{text}"')
    (letter,) = client.queue(f"{queue.name}.dead").get()
    assert (b"m", "max_deliveries") == (letter.body, letter.headers["cassieq-reason"])


def test_a_function_says_that_its_message_is_dead_or_comes_again_uncounted(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([b"reject", b"broken", b"again"])

    ended = workers.run("rule", "--idle-timeout", "3s", "--log-level", "info")
    client.repair(queue.name)

    said = Counter((body, count) for _, body, count in workers.said())
    assert {("reject", 1): 1, ("broken", 1): 1, ("again", 1): 6} == said
    letters = client.queue(f"{queue.name}.dead").get()
    assert {b"reject": "no such order", b"broken": "broken"} == {
        one.body: one.headers["cassieq-reason"] for one in letters
    }
    assert (0, 0, 0, 0) == lie(queue)
    assert 2 == ended.err.count("worker_rejected")
    assert 5 == ended.err.count("worker_retries")
    assert 1 == ended.err.count(" failed\n")
    assert " failed\nValueError: its cause" in ended.err


def test_without_a_dead_letter_queue_a_rejected_message_is_dropped(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue
) -> None:
    client.alter_queue(queue.name, max_deliveries=None, dead_letter_queue=None)
    queue.put(b"reject")

    ended = workers.run("rule", "--idle-timeout", "1s")

    assert "becomes=dropped" in ended.err
    assert 1 == len(workers.said())
    assert (0, 0, 0, 0) == lie(queue)


def test_a_retry_of_a_message_whose_lease_was_lost_changes_nothing_for_its_new_holder(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"lost")
    process = workers.start("rule", "--concurrency", "1", "--visibility-timeout", "1s")
    has(lambda: len(workers.said()) == 1, "the function to begin")
    process.send_signal(signal.SIGSTOP)  # it sleeps through its lease
    seen: list[cassieq.Delivery] = []
    has(lambda: bool(seen.extend(queue.get(wait=0.5)) or seen), "the lease to run out")
    process.send_signal(signal.SIGCONT)
    workers.write("taken")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, b"")
    assert any(b"worker_not_settled" in line for line in lines)

    assert [2] == [one.delivery_count for one in seen]
    assert (0, 1, 0, 0) == lie(queue)
    queue.ack(seen)
    assert 0 == workers.stop(process).code


@pytest.mark.parametrize("how", ["kill", "exit", "segfault"])
def test_a_message_that_kills_processes_ends_in_the_dead_letters_and_takes_no_other_along(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue, how: str
) -> None:
    workers.write("how", how)
    good = [f"m{number}" for number in range(50)]
    queue.put_many([b"bad", *(body.encode() for body in good)])

    ended = workers.run("die", "--idle-timeout", "4s")
    client.repair(queue.name)

    assert 0 == ended.code
    said = Counter(body for _, body, _ in workers.said())
    assert 3 == said.pop("bad")
    assert Counter(good) == said
    code = {"kill": -9, "exit": 3, "segfault": -11}[how]
    assert 3 == ended.err.count(f"the process ended with exit code {code}")
    (letter,) = client.queue(f"{queue.name}.dead").get()
    assert (b"bad", "3") == (letter.body, letter.headers["cassieq-deliveries"])
    assert (0, 0, 0, 0) == lie(queue)


def test_a_function_that_hangs_is_killed_with_what_it_started_and_its_message_has_failed(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([b"bad", b"good"])

    # The lease is far shorter than the timeout: it is renewed, so nobody else gets the message.
    ended = workers.run(
        "hang", "--timeout", "2s", "--visibility-timeout", "0.6s", "--idle-timeout", "4s"
    )
    client.repair(queue.name)

    assert 0 == ended.code
    said = workers.said()
    assert Counter({"bad": 3, "good": 1}) == Counter(body for _, body, _ in said)
    assert 3 == len({pid for pid, body, _ in said if body == "bad"})
    assert 3 == ended.err.count("--timeout is over")
    (letter,) = client.queue(f"{queue.name}.dead").get()
    assert b"bad" == letter.body
    left = int((workers.directory / "program").read_text())
    has(lambda: not psutil.pid_exists(left) or has_ended(psutil.Process(left)), "no orphan")


def test_a_lease_is_renewed_as_long_as_the_function_runs(
    workers: Workers, queue: cassieq.Queue, client: cassieq.Client
) -> None:
    queue.put(b"m")
    process = workers.start("wait_for_go", "--visibility-timeout", "1s")
    has(lambda: len(workers.said("began")) == 1, "the function to begin")
    until_us = client.now_us() + 4_000_000
    seen: list[cassieq.Delivery] = []
    while client.now_us() < until_us:
        seen += queue.get(wait=0.5)
    workers.write("go")
    has(lambda: lie(queue) == (0, 0, 0, 0), "the ack")

    assert [] == seen
    assert 0 == workers.stop(process).code


def told_to_end(workers: Workers, queue: cassieq.Queue) -> subprocess.Popen[bytes]:
    """A worker that has got SIGTERM and given back eight messages; two functions still run."""
    queue.put_many([f"m{number}".encode() for number in range(10)])
    process = workers.start("wait_for_go", "--prefetch", "6")
    has(lambda: len(workers.said("began")) == 2, "two functions to begin")
    process.send_signal(signal.SIGTERM)
    has(lambda: lie(queue)[:2] == (8, 2), "what waits to be given back")
    return process


def test_sigterm_lets_running_functions_end_and_gives_back_what_waits(
    workers: Workers, queue: cassieq.Queue
) -> None:
    process = told_to_end(workers, queue)
    workers.write("go")
    ended = end(process)

    assert 0 == ended.code, ended.err
    assert 2 == len(workers.said("ended"))
    assert (8, 0, 0, 0) == lie(queue)
    assert {1} == {one.delivery_count for one in queue.get(10)}  # those were never handed out


def test_a_second_sigterm_ends_it_at_once_with_the_exit_code_of_sigterm(
    workers: Workers, queue: cassieq.Queue
) -> None:
    ended = workers.stop(told_to_end(workers, queue))

    assert 143 == ended.code, ended.err
    assert "Traceback" not in ended.err
    assert [] == workers.said("ended")


def test_what_has_not_ended_after_the_grace_time_is_given_back(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([f"m{number}".encode() for number in range(2)])
    process = workers.start("wait_for_go", "--grace", "0.5s")
    has(lambda: len(workers.said("began")) == 2, "two functions to begin")

    ended = workers.stop(process)

    assert 0 == ended.code, ended.err
    assert 2 == ended.err.count("worker_stopped_function")
    assert [] == workers.said("ended")
    assert (2, 0, 0, 0) == lie(queue)
    assert {2} == {one.delivery_count for one in queue.get(10)}
    assert not any(psutil.pid_exists(pid) for pid, _, _ in workers.said())


def test_sigterm_for_all_processes_at_once_drains_as_well(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"m")
    process = workers.start("wait_for_go")
    has(lambda: len(workers.said("began")) == 1, "the function to begin")

    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        one.send_signal(signal.SIGTERM)  # as a service manager does
    workers.write("go")
    ended = end(process)

    assert 0 == ended.code, ended.err
    assert 1 == len(workers.said("ended"))
    assert (0, 0, 0, 0) == lie(queue)


def pids(workers: Workers, what: str | None = None) -> set[int]:
    return {pid for pid, _, _ in workers.said(what)}


@pytest.mark.parametrize("limit", [("--max-messages", "3"), ("--max-memory", "4096")])
def test_a_worn_process_is_replaced_and_no_message_notices(
    workers: Workers, queue: cassieq.Queue, limit: tuple[str, str]
) -> None:
    process = workers.start("note", "--concurrency", "1", *limit)
    bodies: list[str] = []

    def is_third() -> bool:
        if len(workers.said()) == len(bodies):
            bodies.append(f"m{len(bodies)}")
            queue.put(bodies[-1].encode())
        return len(pids(workers)) >= 3

    has(is_third, "the third process to work")
    has(lambda: lie(queue) == (0, 0, 0, 0), "all to be acked")
    has(lambda: len(psutil.Process(process.pid).children()) <= 2, "the worn ones to end")

    assert Counter(bodies) == Counter(body for _, body, _ in workers.said())
    assert {1} == {count for _, _, count in workers.said()}
    ended = workers.stop(process)
    assert (0, 0) == (ended.code, ended.err.count("worker_process_failed")), ended.err


def test_sighup_imports_the_function_anew_and_a_broken_release_leaves_the_old_one_at_work(
    workers: Workers, queue: cassieq.Queue
) -> None:
    def release(what: str) -> None:
        workers.write("released.py", f"import work\ndef f(message): work.say({what!r}, message)\n")

    def works(what: str) -> None:
        def is_seen() -> bool:
            queue.put(b"m")
            return len(workers.said(what)) > before

        before = len(workers.said(what))
        has(is_seen, f"a message by {what}")

    release("one")
    process = workers.start("released:f", "--concurrency", "1")
    works("one")
    workers.write("released.py", "1 / 0")
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, b"")
    assert any(b"worker_process_failed" in line and b"division by zero" in line for line in lines)
    works("one")
    release("two")
    works("two")  # without a further signal
    process.send_signal(signal.SIGHUP)

    has(lambda: lie(queue) == (0, 0, 0, 0), "all to be acked")
    ended = workers.stop(process)
    assert 0 == ended.code, ended.err
    assert {1} == {count for _, _, count in workers.said()}


def test_a_function_that_runs_ends_before_its_process_is_replaced(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"m0")
    process = workers.start("wait_for_go", "--concurrency", "1")
    has(lambda: len(workers.said("began")) == 1, "the function to begin")
    process.send_signal(signal.SIGHUP)
    workers.write("go")
    has(lambda: len(workers.said("ended")) == 1, "the function to end")
    (first,) = pids(workers)
    queue.put(b"m1")
    has(lambda: len(workers.said("ended")) == 2, "the next one")
    has(lambda: not psutil.pid_exists(first), "the first process to end")

    assert 0 == workers.stop(process).code
    assert (0, 0, 0, 0) == lie(queue)


def test_probes_are_answered_from_the_first_process_to_the_end(
    workers: Workers, queue: cassieq.Queue
) -> None:
    def probe(path: str) -> tuple[int, str]:
        found = httpx.get(url.replace("/readyz", path))
        return found.status_code, found.text

    workers.write("slow.py", "from work import wait_for, wait_for_go\nwait_for('import')\n")
    arguments = ("--concurrency", "1", "--health", "127.0.0.1:0")
    process = workers.start("slow:wait_for_go", *arguments)
    assert process.stderr is not None
    url = ""
    while not url.startswith("http"):
        url = process.stderr.readline().decode().rpartition(" Health is at ")[2].strip()

    assert (503, "not ready: no process has found the function yet\n") == probe("/readyz")
    assert (200, "ok\n") == probe("/healthz")
    workers.write("import")
    has(lambda: probe("/readyz") == (200, "ok\n"), "the worker to be ready")
    queue.put(b"m")
    has(lambda: len(workers.said("began")) == 1, "the function to begin")
    process.send_signal(signal.SIGTERM)
    has(lambda: probe("/readyz") == (503, "not ready: the worker stops\n"), "the stop")
    assert (200, "ok\n") == probe("/healthz")
    workers.write("go")
    assert 0 == end(process).code


@pytest.mark.parametrize("wrong", ["8081", ":8081", "localhost:http", "localhost:70000"])
def test_an_address_for_probes_that_is_none_is_refused(workers: Workers, wrong: str) -> None:
    ended = workers.run("note", "--health", wrong)
    assert (2, True) == (ended.code, f"--health is '{wrong}', allowed: HOST:PORT" in ended.err)


def test_when_the_worker_is_killed_its_processes_end_and_its_messages_come_again(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([f"m{number}".encode() for number in range(2)])
    process = workers.start("wait_for_go", "--visibility-timeout", "2s")
    has(lambda: len(workers.said("began")) == 2, "two functions to begin")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2

    process.kill()
    end(process)

    has(lambda: all(has_ended(child) for child in children), "no orphan")
    workers.write("go")
    assert 0 == workers.run("wait_for_go", "--idle-timeout", "4s").code
    assert {"m0", "m1"} == {body for _, body, count in workers.said("ended") if count == 2}
    assert (0, 0, 0, 0) == lie(queue)


def test_coroutines_of_one_process_work_on_messages_side_by_side(
    workers: Workers, queue: cassieq.Queue
) -> None:
    bodies = [f"m{number}" for number in range(200)]
    queue.put_many([body.encode() for body in bodies])

    ended = workers.run("count", "--concurrency", "1", "--async", "20", "--idle-timeout", "1s")

    assert 0 == ended.code, ended.err
    assert "Calling work:count with 20 coroutines in each of 1 processes" in ended.err
    assert Counter(bodies) == Counter(body for _, body, _ in workers.said())
    assert 1 == len({pid for pid, _, _ in workers.said()})
    most = max(range(21), key=lambda many: many * bool(workers.said(f"of-{many}")))
    assert 10 < most <= 20
    assert (0, 0, 0, 0) == lie(queue)


def test_a_coroutine_that_hangs_is_cancelled_and_the_others_of_its_process_go_on(
    client: cassieq.Client, workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([b"bad", b"good", b"good"])

    arguments = ("--async", "3", "--concurrency", "1", "--visibility-timeout", "1s")
    ended = workers.run("hang_later", *arguments, "--timeout", "3s", "--idle-timeout", "4s")
    client.repair(queue.name)

    assert 0 == ended.code, ended.err
    said = workers.said()
    assert Counter({"bad": 3, "good": 2}) == Counter(body for _, body, _ in said)
    assert 1 == len({pid for pid, _, _ in said})
    assert 3 == ended.err.count("--timeout is over")
    (letter,) = client.queue(f"{queue.name}.dead").get()
    assert b"bad" == letter.body


def test_a_coroutine_that_blocks_its_loop_is_killed_with_its_process(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put(b"blocks")

    arguments = ("--async", "3", "--concurrency", "1", "--grace", "1s", "--timeout", "1s")
    ended = workers.run("hang_later", *arguments, "--idle-timeout", "4s")

    assert 0 == ended.code, ended.err
    assert [1, 2, 3] == [count for _, _, count in workers.said()]
    assert 3 == len({pid for pid, _, _ in workers.said()})
    assert (0, 0, 0, 1) == lie(queue)


def test_a_process_that_is_killed_gives_all_its_messages_back_and_is_replaced(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([b"m0", b"m1", b"m2"])
    process = workers.start("wait_for_go_later", "--async", "3", "--concurrency", "1")
    has(lambda: len(workers.said("began")) == 3, "three coroutines to begin")
    (first,) = pids(workers)
    os.kill(first, signal.SIGKILL)
    has(lambda: len(workers.said("began")) == 6, "three coroutines to begin again")
    workers.write("go")
    has(lambda: lie(queue) == (0, 0, 0, 0), "the acks")

    ended = workers.stop(process)
    assert (0, 3) == (ended.code, ended.err.count("the process ended with exit code -9"))
    assert {2} == {count for _, _, count in workers.said("ended")}
    assert 2 == len(pids(workers))


def test_sigterm_lets_running_coroutines_end_and_gives_back_what_waits(
    workers: Workers, queue: cassieq.Queue
) -> None:
    queue.put_many([f"m{number}".encode() for number in range(10)])
    arguments = ("--async", "3", "--concurrency", "1", "--prefetch", "5")
    process = workers.start("wait_for_go_later", *arguments)
    has(lambda: len(workers.said("began")) == 3, "three coroutines to begin")
    process.send_signal(signal.SIGTERM)
    has(lambda: lie(queue)[:2] == (7, 3), "what waits to be given back")
    workers.write("go")
    ended = end(process)

    assert 0 == ended.code, ended.err
    assert 3 == len(workers.said("ended"))
    assert (7, 0, 0, 0) == lie(queue)
    assert {1} == {one.delivery_count for one in queue.get(10)}


def test_processes_that_are_killed_again_and_again_lose_no_message(
    workers: Workers, queue: cassieq.Queue, client: cassieq.Client
) -> None:
    client.alter_queue(queue.name, max_deliveries=None, dead_letter_queue=None)
    bodies = [f"m{number}" for number in range(600)]
    queue.put_many([body.encode() for body in bodies])
    process = workers.start("note_later")
    kills = 0

    def is_done() -> bool:
        nonlocal kills
        child = psutil.Process(process.pid).children()
        if child and len(workers.said()) >= 60 * (kills + 1):
            os.kill(child[0].pid, signal.SIGKILL)  # idle, at work, or still beginning
            kills += 1
        return lie(queue) == (0, 0, 0, 0)

    has(is_done, "all to be acked")

    assert kills > 3
    assert set(bodies) == {body for _, body, _ in workers.said()}
    assert 0 == workers.stop(process).code


def test_a_worker_is_idle_also_where_a_process_never_begins(
    workers: Workers, queue: cassieq.Queue
) -> None:
    workers.write(
        "stuck.py",
        "from work import HERE, note, wait_for\n"
        "try:\n"
        "    (HERE / 'first').touch(exist_ok=False)\n"
        "except FileExistsError:\n"
        "    wait_for('never')\n",
    )
    queue.put(b"m")

    ended = workers.run("stuck:note", "--idle-timeout", "1s")

    assert 0 == ended.code, ended.err
    assert [b"m"] == [body.encode() for _, body, _ in workers.said()]
    assert (0, 0, 0, 0) == lie(queue)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:f", "module 'no_such_module' of 'no_such_module:f' cannot be imported"),
        ("work:no_such_function", "module 'work' has no 'no_such_function'"),
        ("work:HERE", "is PosixPath, allowed: a function"),
        ("broken:f", "cannot be imported: ZeroDivisionError: division by zero"),
        ("gone:f", "the process that imports 'gone:f' ended with exit code 7"),
        ("work:", "'work:' is no name of a function. Write module:function"),
    ],
)
def test_a_function_that_cannot_be_used_is_named_before_anything_is_claimed(
    workers: Workers, queue: cassieq.Queue, name: str, says: str
) -> None:
    workers.write("broken.py", "1 / 0")
    workers.write("gone.py", "import os; os._exit(7)")
    queue.put(b"m")

    ended = workers.run(name)

    assert 2 == ended.code
    assert "[cassieq:function_invalid] " in ended.err
    assert says in ended.err
    assert {1} == {one.delivery_count for one in queue.get()}


def test_a_queue_that_is_not_there_or_goes_away_ends_the_worker(
    workers: Workers, queue: cassieq.Queue
) -> None:
    process = workers.start("note")
    queue.put(b"m")
    has(lambda: len(workers.said()) == 1, "a message")
    queue.delete()

    ended = end(process)
    assert (1, True) == (ended.code, "[cassieq:queue_deleted]" in ended.err)
    ended = workers.run("note")
    assert (1, True) == (ended.code, "[cassieq:queue_not_found]" in ended.err)
