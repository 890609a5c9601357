"""A process that the fork server makes is as one that is started, and ends as one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from cassieq_spark.testing import wait_until
from tests.fixtures.processes import outermost

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is none but on Linux")

FORK = Path(__file__).resolve().parents[2] / "scripts" / "cassieq_fork.py"
ENDS_S = 30.0

PROBE = """
import json, os, sys, threading, time
from pathlib import Path
from cassieq_spark.entropy import system

class Late:
    def __del__(self, sleep=time.sleep, end=Path("late")):
        sleep(0.5)
        end.touch()

if __name__ == "__main__":
    seen = {"env": dict(os.environ), "cwd": os.getcwd(), "name": __name__, "path": sys.path}
    seen["arguments"] = sys.argv[1:]
    seen["threads"] = len(os.listdir("/proc/self/task"))
    seen |= {"parent": os.getppid(), "pid": os.getpid(), "jitter": system.jitter(1.0, 0)}
    print(json.dumps(seen), flush=True)
    print("to standard error", file=sys.stderr)
    with Path("runs").open("a") as runs:
        runs.write("x")
    if os.environ["THEN"] == "wait":
        threading.Event().wait()
    if os.environ["THEN"] == "late":
        late = Late()  # until Python ends
        sys.exit()
    if os.environ["THEN"] == "fail":
        raise ValueError("it failed")
    sys.exit(int(os.environ["THEN"]))
"""


class Spark:
    """This process, as the one that starts Python processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "fork_probe.py").write_text(PROBE, encoding="utf-8")

    def start(
        self,
        then: str = "0",
        *words: str,
        module: str = "fork_probe",
        cwd: Path | None = None,
        stdin: bool = False,
        process_group: int | None = None,
        **env: str,
    ) -> subprocess.Popen[str]:
        """Start a process by ``cassieq-fork``."""
        own = {"TMPDIR": str(self.folder), "PYTHONPATH": str(self.folder), "THEN": then}
        command = [sys.executable, "-I", "-S", FORK, sys.executable, "-m", module, *words]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or self.folder,
            process_group=process_group,
            env={**os.environ, **own, **env},
        )

    def run(self, then: str = "0", *words: str, **how: Any) -> tuple[dict[str, Any], str, int]:
        """What a process sees, what it says, and how it ends."""
        process = self.start(then, *words, **how)
        out, error = process.communicate(timeout=ENDS_S)
        return json.loads(out), error, process.returncode

    def serve(self) -> psutil.Process:
        """Begin a server, and wait until it serves."""
        self.run()
        wait_until(lambda: bool(self.sockets()), deadline_s=ENDS_S, describe="the server serves")
        (server,) = self.servers()
        return server

    def sockets(self) -> list[Path]:
        """Where servers serve."""
        return [one for one in self.folder.glob("cassieq-fork-*/*") if one.is_socket()]

    def servers(self) -> list[psutil.Process]:
        """The servers that live, without their children."""
        return outermost(lambda words: str(self.folder) in " ".join(words))


@pytest.fixture
def spark() -> Iterator[Spark]:
    folder = Path(tempfile.mkdtemp(prefix="fork"))  # short: it is part of a socket's path
    spark = Spark(folder)
    yield spark
    for server in spark.servers():
        server.kill()
    shutil.rmtree(folder)


@pytest.mark.parametrize("then", ["0", "3", "fail"])
def test_a_forked_process_is_as_one_that_was_started(spark: Spark, then: str) -> None:
    server = spark.serve()
    cwd = spark.folder / "other"
    cwd.mkdir()
    env = {"OF_THIS": "ä=b", **{f"LONG_{at}": "x" * 100_000 for at in range(8)}}
    words = ("one", "", "and two")
    started, said, code = spark.run(then, *words, cwd=cwd, **env, CASSIEQ_FORK_SERVER="off")
    forked, says, ends = spark.run(then, *words, cwd=cwd, **env)
    assert (os.getpid(), server.pid) == (started["parent"], forked["parent"])
    assert ({"0": 0, "3": 3, "fail": 1}[then], code) == (code, ends)
    assert "to standard error" in says
    assert (
        ("ValueError: it failed" in said) is ("ValueError: it failed" in says) is (then == "fail")
    )
    del started["env"]["CASSIEQ_FORK_SERVER"]
    for name in ("env", "cwd", "name", "path", "arguments", "threads"):
        assert started[name] == forked[name]


def test_children_have_random_numbers_of_their_own(spark: Spark) -> None:
    server = spark.serve()
    assert server.pid == spark.run()[0]["parent"]
    assert spark.run()[0]["jitter"] != spark.run()[0]["jitter"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_when_what_spark_has_started_is_ended(spark: Spark, how: signal.Signals) -> None:
    spark.serve()
    process = spark.start("wait")
    assert process.stdout is not None
    child = psutil.Process(json.loads(process.stdout.readline())["pid"])
    assert child.pid != process.pid
    process.send_signal(how)
    process.communicate(timeout=ENDS_S)
    wait_until(lambda: not child.is_running(), deadline_s=ENDS_S, describe="the child ends")


class Daemon:
    """Spark's daemon of one step of planning, and a worker that it has forked."""

    def __init__(self, spark: Spark, process_group: int | None = None) -> None:
        env = {"PYTHON_WORKER_FACTORY_SECRET": "s"}
        step = "pyspark.sql.worker.create_data_source"
        self.process = spark.start(
            "0",
            step,
            module="pyspark.daemon",
            stdin=True,
            process_group=process_group,
            **env,
        )
        assert self.process.stdout is not None
        port = int.from_bytes(os.read(self.process.stdout.fileno(), 4), "big")
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=ENDS_S)
        self.worker = psutil.Process(int.from_bytes(self.connection.recv(4), "big"))
        self.daemon = psutil.Process(self.worker.ppid())

    def close_input(self) -> None:
        """As Spark ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def close(self) -> None:
        """End what may be left of it."""
        self.connection.close()
        self.process.kill()
        self.process.communicate(timeout=ENDS_S)


@pytest.fixture
def daemon(spark: Spark) -> Iterator[Daemon]:
    spark.serve()
    daemon = Daemon(spark)
    yield daemon
    daemon.close()


def test_a_daemon_is_forked_as_well_and_has_one_thread(spark: Spark, daemon: Daemon) -> None:
    """It forks workers itself: a lock of another thread would never be free there."""
    (server,) = spark.servers()
    assert server == daemon.daemon.parent()
    assert 1 == daemon.daemon.num_threads()
    mapped = Path(f"/proc/{daemon.worker.pid}/maps").read_text(encoding="utf-8")
    assert "libarrow" in mapped, "a worker has imported everything"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, None])
def test_a_daemon_and_its_workers_end_when_spark_ends_it(
    daemon: Daemon, how: signal.Signals | None
) -> None:
    """By a signal to what it has started, or by the end of its standard input."""
    if how is None:
        daemon.close_input()
    else:
        daemon.process.send_signal(how)
    ended = wait_until(daemon.process.poll, deadline_s=ENDS_S, describe="it ends")
    for one in (daemon.daemon, daemon.worker):
        wait_until(lambda: not one.is_running(), deadline_s=ENDS_S, describe="the rest ends")  # noqa: B023 - waited for at once
    assert how is None or ended == -how


def test_what_spark_has_started_ends_with_a_killed_daemon_though_a_worker_lives(
    daemon: Daemon,
) -> None:
    """Spark starts another daemon when this one has ended."""
    daemon.worker.suspend()
    daemon.daemon.kill()
    daemon.process.wait(ENDS_S)
    assert daemon.worker.is_running()
    daemon.worker.kill()


def test_a_signal_to_sparks_group_does_not_reach_a_daemon(spark: Spark) -> None:
    """Such a signal stops jobs in a terminal, and Spark: what is under way is ended by Spark."""
    spark.serve()
    waiting = "import threading; threading.Event().wait(60)"
    group = subprocess.Popen([sys.executable, "-c", waiting], process_group=0)
    daemon = Daemon(spark, process_group=group.pid)
    try:
        os.killpg(group.pid, signal.SIGTERM)
        assert -signal.SIGTERM == group.wait(ENDS_S)
        assert (daemon.process.pid, daemon.daemon.pid) == tuple(
            os.getpgid(pid) for pid in (daemon.process.pid, daemon.daemon.pid)
        )
        assert daemon.process.poll() is None
    finally:
        daemon.close()


def test_an_interrupt_ends_what_spark_has_started_and_starts_nothing(spark: Spark) -> None:
    spark.serve()
    (spark.folder / "runs").unlink()
    process = spark.start("wait")
    assert process.stdout is not None
    child = psutil.Process(json.loads(process.stdout.readline())["pid"])
    runs = spark.folder / "runs"
    wait_until(runs.exists, deadline_s=ENDS_S, describe="the child has noted its run")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=ENDS_S)
    assert -signal.SIGINT == process.returncode
    wait_until(lambda: not child.is_running(), deadline_s=ENDS_S, describe="the child ends")
    assert "x" == runs.read_text()


def test_a_child_is_not_cut_short_when_it_has_told_its_end(spark: Spark) -> None:
    """Python closes files and writes out what it holds after that."""
    server = spark.serve()
    assert server.pid == spark.run("late")[0]["parent"]
    late = spark.folder / "late"
    wait_until(late.exists, deadline_s=ENDS_S, describe="the child ends in peace")


def test_one_server_is_enough_however_spark_names_the_path(spark: Spark) -> None:
    """It names each entry twice for a format found by itself; a registered one has a hash seed."""
    server = spark.serve()
    path = os.pathsep.join(2 * [str(spark.folder)])
    for env in ({"PYTHONPATH": path}, {"PYTHONHASHSEED": "0"}, {"PYTHON_WORKER_OF": "1"}):
        assert server.pid == spark.run(**env)[0]["parent"]


@pytest.mark.parametrize(
    "env", [{"PYTHONHASHSEED": "7"}, {"PYTHONOPTIMIZE": "1"}, {"TZ": "Asia/Tokyo"}]
)
def test_a_process_that_would_begin_otherwise_is_not_forked_by_this_server(
    spark: Spark, env: dict[str, str]
) -> None:
    server = spark.serve()
    assert server.pid != spark.run(**env)[0]["parent"]


def test_a_process_with_a_limit_on_its_memory_is_started(spark: Spark) -> None:
    spark.serve()
    assert os.getpid() == spark.run(PYSPARK_PLANNER_MEMORY_MB="100")[0]["parent"]


@pytest.mark.parametrize("asked", [b"/nowhere\0001\0fork_probe", b"/\0x\0fork_probe", b"/"])
def test_a_child_that_cannot_be_what_is_asked_agrees_to_nothing(spark: Spark, asked: bytes) -> None:
    """Who asked starts by itself then; the server serves on."""
    server = spark.serve()
    (path,) = spark.sockets()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ENDS_S)
        asking.connect(str(path))
        null = os.open(os.devnull, os.O_RDWR)
        socket.send_fds(asking, [len(asked).to_bytes(8, "big")], [null] * 3)
        os.close(null)
        asking.sendall(asked)
        assert b"" == asking.recv(1)
    assert server.pid == spark.run()[0]["parent"]


def test_what_spark_has_started_ends_when_the_child_is_killed(spark: Spark) -> None:
    spark.serve()
    process = spark.start("wait")
    assert process.stdout is not None
    os.kill(json.loads(process.stdout.readline())["pid"], signal.SIGKILL)
    process.communicate(timeout=ENDS_S)
    assert 1 == process.returncode


def test_without_an_answer_it_starts_by_itself_and_only_once(spark: Spark) -> None:
    """Spark waits for ten seconds, and takes the first that connects."""
    server = spark.serve()
    (spark.folder / "runs").unlink()
    server.suspend()
    process = spark.start()
    assert process.stdout is not None
    # Its output has no end yet: the server has been sent it, too.
    assert os.getpid() == json.loads(process.stdout.readline())["parent"]
    assert 0 == process.wait(ENDS_S)
    server.resume()
    process.communicate(timeout=ENDS_S)
    forked, _, _ = spark.run()
    assert server.pid == forked["parent"]
    wait_until(lambda: not server.children(), deadline_s=ENDS_S, describe="all children ended")
    assert "xx" == (spark.folder / "runs").read_text()


def test_many_that_start_at_once_begin_one_server(spark: Spark) -> None:
    for process in [spark.start() for _ in range(8)]:
        process.communicate(timeout=ENDS_S)
        assert 0 == process.returncode
    wait_until(lambda: bool(spark.sockets()), deadline_s=ENDS_S, describe="the server serves")
    (server,) = spark.servers()
    asked = [spark.start() for _ in range(8)]
    seen = [json.loads(one.communicate(timeout=ENDS_S)[0]) for one in asked]
    assert {server.pid} == {one["parent"] for one in seen}


def test_the_server_is_no_child_of_the_process_that_began_it(spark: Spark) -> None:
    """It would be a zombie there when it has ended: a query may run for months."""
    process = spark.start("wait")
    wait_until(lambda: bool(spark.sockets()), deadline_s=ENDS_S, describe="the server serves")
    assert [] == psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=ENDS_S)


def test_a_server_that_cannot_fork_says_why_and_is_not_begun_again(spark: Spark) -> None:
    """As where an import begins a thread: a lock that it holds would never be free in a child."""
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (spark.folder / "pyspark_cassieq.py").write_text(f"import threading\n{thread}")
    spark.run()
    (lock,) = spark.folder.glob("cassieq-fork-*/*.lock")
    said = wait_until(lock.read_text, deadline_s=ENDS_S, describe="the server says why")
    assert "thread" in said
    wait_until(lambda: not spark.servers(), deadline_s=ENDS_S, describe="the server ends")
    assert os.getpid() == spark.run()[0]["parent"]
    assert [] == spark.servers()


def test_a_server_ends_with_its_spark(spark: Spark) -> None:
    """And leaves nothing behind."""
    command = [sys.executable, "-I", "-S", str(FORK), sys.executable, "-m", "fork_probe"]
    code = f"import subprocess, sys; subprocess.run({command}); sys.stdin.read()"
    env = {**os.environ, "TMPDIR": str(spark.folder), "PYTHONPATH": str(spark.folder), "THEN": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=spark.folder, env=env
    ) as driver:
        wait_until(lambda: bool(spark.sockets()), deadline_s=ENDS_S, describe="the server serves")
        assert driver.stdin is not None
        driver.stdin.close()
        driver.wait(ENDS_S)
    wait_until(lambda: not spark.servers(), deadline_s=ENDS_S, describe="the server ends")
    assert [] == list(spark.folder.glob("cassieq-fork-*/*"))


def test_a_server_whose_socket_was_cleaned_away_makes_room_for_another(spark: Spark) -> None:
    """Nobody can ask it any more."""
    server = spark.serve()
    (path,) = spark.sockets()
    path.unlink()
    wait_until(lambda: not server.is_running(), deadline_s=ENDS_S, describe="the server ends")
    assert server.pid != spark.serve().pid


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_can_use_is_not_used(spark: Spark, mode: int) -> None:
    folder = spark.folder / f"cassieq-fork-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    seen, _, code = spark.run()
    assert (os.getpid(), 0) == (seen["parent"], code)
    assert [] == spark.servers()
    assert [] == list(folder.iterdir())


def test_a_path_that_is_too_long_for_a_socket_is_not_used(spark: Spark) -> None:
    folder = spark.folder / ("x" * 80)
    folder.mkdir()
    seen, _, code = spark.run(TMPDIR=str(folder))
    assert (os.getpid(), 0) == (seen["parent"], code)
    assert [] == list(folder.iterdir())
