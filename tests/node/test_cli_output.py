"""Standard output that is closed, full or not read to its end: what is not written is not done."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from tests.fixtures.commands import CASSIEQ, CommandLine, end

if TYPE_CHECKING:
    from collections.abc import Iterator


FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")

PRINTING = [
    "config",
    "peek {queue}",
    "get {queue}",
    "put {queue} x",
    "ack {queue} {receipt}",
    "watch {queue} --count 1",
    "load get {queue} --idle-timeout 0",
    "load put {queue} --count 1",
    "queue list",
    "queue show {queue}",
    "queue alter {queue} --linger 0",
    "repair {queue}",
    "repair {queue} --verify",
    "bootstrap",
    "dead list {queue}",
    "dead show {queue}",
    "dead redrive {queue} --to {other} --yes",
    "--version",
]


@pytest.fixture
def arguments(client: cassieq.Client, queue: cassieq.Queue) -> dict[str, str]:
    """What the commands of `PRINTING` are about: one message that is held, some that are not."""
    queue.put_many([b"x"] * 5)
    [held] = queue.get(1)
    other = client.create_queue(f"{queue.name}.other")
    return {"queue": queue.name, "receipt": held.receipt, "other": other.name}


@pytest.fixture(params=["buffered", "unbuffered"])
def how(request: pytest.FixtureRequest, cli: CommandLine) -> dict[str, Any]:
    """Unbuffered, Python's own stream forgets what a short write has left out."""
    more = {"PYTHONUNBUFFERED": "1"} if request.param == "unbuffered" else {}
    return {"env": cli.environment(**more)}


@pytest.fixture
def full() -> Iterator[int]:
    opened = os.open(FULL, os.O_WRONLY)
    yield opened
    os.close(opened)


def lie(queue: cassieq.Queue) -> tuple[int, int]:
    stats = queue.stats()
    return stats.visible, stats.in_flight


def said_by(process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
    assert process.stderr is not None
    with process.stderr as err:  # not communicate: standard output may be closed
        lines = err.read().decode().splitlines()
    return process.wait(120), lines


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_what_a_short_write_left_out_is_not_acked(
    cli: CommandLine, queue: cassieq.Queue, how: dict[str, Any], as_json: bool
) -> None:
    """As ``get --max-messages 2000 --ack | head -1``: one line is read, and then nobody reads."""
    queue.put_many([b"x" * 100] * 2_000)
    flags = ["--json"] if as_json else []

    process = cli.start("get", queue.name, "--max-messages", "2000", "--ack", *flags, **how)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"\n")
    process.stdout.close()

    assert (141, []) == said_by(process)
    assert (2_000, 0) == lie(queue)


@needs_full
@pytest.mark.parametrize("flags", [(), ("--ack",), ("--json",)], ids=str)
def test_what_a_full_disk_did_not_take_is_given_back(
    cli: CommandLine, queue: cassieq.Queue, how: dict[str, Any], full: int, flags: tuple[str, ...]
) -> None:
    queue.put_many([b"x" * 100] * 300)

    process = cli.start(
        "get", queue.name, "--max-messages", "300", *flags, **{**how, "stdout": full}
    )
    code, [line] = said_by(process)

    assert 1 == code
    assert line.startswith("[cassieq:output_failed] standard output cannot be written")
    assert "No space left on device" in line
    assert (300, 0) == lie(queue)


@needs_full
@pytest.mark.parametrize("command", [*PRINTING, "--help", "queue --help"])
def test_a_full_disk_is_one_line_and_exit_code_1(
    cli: CommandLine, arguments: dict[str, str], full: int, command: str
) -> None:
    words = command.format(**arguments).split()
    code, lines = said_by(cli.start(*words, stdout=full))

    assert (1, 1) == (code, len(lines)), lines
    assert lines[0].startswith("[cassieq:output_failed] ")


@pytest.mark.parametrize("command", PRINTING)
def test_a_closed_pipe_is_quiet(cli: CommandLine, arguments: dict[str, str], command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    words = command.format(**arguments).split()
    process = cli.start(*words, stdout=write)
    os.close(write)

    assert (141, []) == said_by(process)


@pytest.mark.parametrize("flags", [(), ("--ack",)], ids=str)
def test_without_a_standard_output_nothing_stays_leased_and_nothing_is_acked(
    cli: CommandLine, queue: cassieq.Queue, flags: tuple[str, ...]
) -> None:
    queue.put(b"x")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", str(CASSIEQ)]
    process = subprocess.Popen(
        [*command, "get", queue.name, *flags], env=cli.environment(), stderr=subprocess.PIPE
    )
    code, lines = said_by(process)

    assert (1, 1) == (code, len(lines)), lines
    assert lines[0].startswith("[cassieq:output_failed] standard output is closed")
    assert (1, 0) == lie(queue)


@needs_full
@pytest.mark.parametrize(
    ("command", "expected"),
    [("get {queue}.none", 1), ("peek {queue} --max-messages 0", 2), ("queue delete {queue}", 2)],
)
def test_a_full_standard_error_does_not_change_the_exit_code(
    cli: CommandLine, arguments: dict[str, str], full: int, command: str, expected: int
) -> None:
    process = cli.start(*command.format(**arguments).split(), stderr=full)

    assert (expected, b"") == (process.wait(120), process.communicate()[0])


def test_what_a_slow_reader_reads_in_pieces_comes_whole(
    cli: CommandLine, queue: cassieq.Queue, how: dict[str, Any]
) -> None:
    queue.put_many([b"x" * 100] * 2_000)

    done = end(cli.start("get", queue.name, "--max-messages", "2000", "--ack", **how))

    assert (0, 2_000) == (done.code, len(done.lines))
    assert (0, 0) == lie(queue)
