"""Parts of the command line that need no Cassandra: lines, pauses, signals, what is printed."""

from __future__ import annotations

import io
import re
import signal

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from cassieq_spark.cli.load import MOST_BEHIND_S, Load
from cassieq_spark.cli.messages import batches, get_unless
from cassieq_spark.cli.repair import show
from cassieq_spark.cli.shell import Interrupt, Out, Work, exit_codes, print_rows, show_text
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import (
    BodyInvalid,
    CassieqError,
    ClientClosed,
    StoreTimeout,
    StoreUnavailable,
)
from cassieq_spark.model.sizes import MAX_BODY_BYTES
from cassieq_spark.queue.message import Delivery
from cassieq_spark.repair.report import QueueRepair, RepairReport


class Pieces(io.RawIOBase):
    """A pipe whose writer writes just these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int = -1) -> bytes:
        return self._pieces.pop(0)[:size] if self._pieces else b""


class CountingClock:
    """Time passes only by waiting."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_us(self) -> int:
        return round(self.at_s * 1e6)

    def monotonic(self) -> float:
        return self.at_s

    def wait(self, seconds: float) -> None:
        self.at_s += seconds


def read(*pieces: bytes) -> list[list[bytes]]:
    return list(batches(Pieces(list(pieces))))  # type: ignore[arg-type]  # it is read by read1 only


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\nd", b"e\n\n", b"\r\n"])))
def test_lines_are_the_same_however_they_arrive(pieces: list[bytes]) -> None:
    expected = b"".join(pieces).split(b"\n")
    if expected[-1] == b"":
        expected.pop()

    assert expected == [line for batch in read(*pieces) for line in batch]


def test_what_one_read_brings_goes_together_and_does_not_wait_for_more() -> None:
    assert [[b"a", b"", b"c"], [b"de"], [b"f"]] == read(b"a\n\nc\nd", b"e\n", b"f")


def test_a_line_too_long_for_a_body_is_refused_before_it_ends() -> None:
    pieces = [b"short\n", *[b"x" * 262_144] * (MAX_BODY_BYTES // 262_144), b"x"]
    found = batches(Pieces([*pieces, b"never read"]))  # type: ignore[arg-type]  # as above

    assert [b"short"] == next(found)
    with pytest.raises(BodyInvalid, match=r"line 2 of standard input .* 1 lines before it are put"):
        next(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ü", "plain ü"),
        ("two\nlines\tand a \\", "two\\nlines\\tand a \\\\"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_body_can_neither_break_its_line_nor_command_the_terminal(
    text: str, expected: str
) -> None:
    assert expected == show_text(text)


def test_a_result_is_names_and_values_without_the_empty_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = {"a": 1, "none": None, "inner": {"long": 0.5}, "list": ["x", "y"]}
    Out(as_json=False).result(result)
    assert "a           1\ninner.long  0.5\nlist        x, y\n" == capsys.readouterr().out


def test_a_program_gets_every_line_whole_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["A", "B"], [["x" * 500, "[bold]"], ["日本", "é"]])
    width = 502
    first, second, third = capsys.readouterr().out.splitlines()
    assert f"{'A':<{width}}B" == first
    assert f"{'x' * 500}  [bold]" == second
    assert f"日本{' ' * (width - 4)}é" == third  # each of the two takes two columns


def test_a_terminal_gets_all_of_it_within_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows(["QUEUE", "MESSAGES"], [["q" * 60, 7], ["b", 123]])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", one) for one in capsys.readouterr().out.splitlines()]
    assert 40 >= max(map(len, lines))
    assert 60 == sum(line.count("q") for line in lines)
    assert lines[1].endswith("       7")
    assert lines[-1].endswith("     123")


def test_each_step_begins_with_an_unknown_total_and_a_clock_of_its_own() -> None:
    shown = Progress(console=Console(file=io.StringIO()), disable=True)
    work = Work(shown, shown.add_task("Looking", total=None, at=""), "Looking")

    work.begin("Fetching")
    work.on_bytes(31_000_000, 62_000_000)
    (fetching,) = shown.tasks
    assert ("Fetching", True, 50.0, "31.0 MB of 62.0 MB") == (
        fetching.description,
        fetching.started,
        fetching.percentage,
        fetching.fields["at"],
    )

    work.begin("Starting")
    (starting,) = shown.tasks
    assert ("Starting", True, None, "") == (
        starting.description,
        starting.started,
        starting.total,
        starting.fields["at"],
    )


def test_the_first_signal_is_a_flag_and_the_second_an_exception() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt
        signal.raise_signal(signal.SIGTERM)
        assert interrupt
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert before is signal.getsignal(signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_a_signal_ended_early_has_the_signals_exit_code(number: int, code: int) -> None:
    with Interrupt() as interrupt:
        interrupt.end(is_done=False)
        signal.raise_signal(number)
        interrupt.end(is_done=True)
        with pytest.raises(typer.Exit) as caught:
            interrupt.end(is_done=False)
    assert code == caught.value.exit_code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_a_command_with_its_own_exit_code(number: int, code: int) -> None:
    def command() -> None:
        with exit_codes(), Interrupt():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(number)

    with pytest.raises(typer.Exit) as caught:
        command()
    assert code == caught.value.exit_code


@pytest.mark.parametrize("kind", [StoreTimeout, StoreUnavailable, ClientClosed])
def test_what_the_store_says_is_no_failure_of_standard_output(
    kind: type[CassieqError], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, exit_codes():
        raise kind("no node answers")
    assert 1 == caught.value.exit_code
    typer.echo("it still writes")
    assert ("it still writes\n", f"[cassieq:{kind.code}] no node answers\n") == capsys.readouterr()


def test_a_pause_ends_at_its_moment_or_soon_after_a_signal() -> None:
    clock = CountingClock()
    with Interrupt() as interrupt:
        interrupt.pause_until(clock, 103.0)
        assert 103.0 == pytest.approx(clock.at_s)
        interrupt.pause_until(clock, 50.0)
        assert 103.0 == pytest.approx(clock.at_s)
        signal.raise_signal(signal.SIGINT)
        interrupt.pause_until(clock, 1e9)
        assert 103.0 == pytest.approx(clock.at_s)


def test_a_long_wait_is_many_short_looks_that_end_at_its_deadline() -> None:
    clock, looks = CountingClock(), []

    def look(seconds: float) -> list[Delivery]:
        looks.append(seconds)
        clock.wait(seconds)
        return []

    with Interrupt() as interrupt:
        assert [] == get_unless(interrupt, clock, 2.5, look)

    assert [1.0, 1.0, 0.5] == pytest.approx(looks)


def test_a_wait_of_nothing_is_one_look() -> None:
    looks: list[float] = []
    with Interrupt() as interrupt:
        get_unless(interrupt, SystemClock(), 0, lambda seconds: looks.append(seconds) or [])
    assert [0.0] == looks


def test_a_rate_says_when_the_next_batch_is_due_and_no_rate_says_now() -> None:
    clock = CountingClock()
    paced, free = Load(clock=clock, rate=10), Load(clock=clock, rate=None)
    for load in (paced, free):
        load.start()
        clock.wait(4)
        load.add(50, 500, since_s=clock.at_s - 0.25)

    assert (105.0, 108.0) == (paced.due_s(), free.due_s())


def test_a_consumer_that_found_nothing_for_long_does_not_make_up_for_it() -> None:
    clock = CountingClock()
    load = Load(clock=clock, rate=10)
    load.start()
    clock.wait(60)
    load.forgive()
    load.add(5, 5, since_s=clock.at_s)

    assert clock.at_s - MOST_BEHIND_S + 5 / 10 == pytest.approx(load.due_s())


def test_a_consumer_that_is_a_little_behind_catches_up() -> None:
    clock = CountingClock()
    load = Load(clock=clock, rate=10)
    load.start()
    clock.wait(0.3)
    load.forgive()
    load.add(1, 1, since_s=clock.at_s)

    assert 100.1 == pytest.approx(load.due_s())


def test_a_summary_has_the_speed_and_the_percentiles_of_the_calls() -> None:
    clock = CountingClock()
    load = Load(clock=clock, rate=None, more={"stale": 3})
    load.start()
    for call_s in range(1, 101):
        clock.wait(call_s)
        load.add(10, 1_000, since_s=clock.at_s - call_s)

    assert {
        "messages": 1_000,
        "bytes": 100_000,
        "seconds": 5_050.0,
        "messages_per_s": 0.2,
        "stale": 3,
        "put_ms": {
            "p50": 50_500.0,
            "p90": 90_100.0,
            "p99": 99_010.0,
            "p99_9": 99_901.0,
            "max": 100_000.0,
        },
    } == load.summary("put")


def test_a_summary_of_nothing_has_no_percentiles() -> None:
    load = Load(clock=CountingClock(), rate=None)
    load.start()
    assert {
        "messages": 0,
        "bytes": 0,
        "seconds": 0.0,
        "messages_per_s": 0.0,
        "put_ms": {},
    } == load.summary("put")


def test_a_person_sees_what_a_repair_did_as_a_table_and_a_program_every_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = [QueueRepair(queue="orders", dropped=12), QueueRepair(queue="mail", sinks_ended=1)]
    report = RepairReport(queues=done)

    assert not show(RepairReport(sinks_swept=2, swept_lanes=3), Out(as_json=False))
    assert ["2", "3"] == [
        line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()[1:]
    ]

    assert not show(report, Out(as_json=False))
    titles, *rows = capsys.readouterr().out.splitlines()
    assert {"queue", "moved_dead", "dropped"} <= set(titles.split())
    assert ["orders", "mail"] == [row.split()[0] for row in rows]

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert not show(report, Out(as_json=False))
    table = capsys.readouterr().out
    assert "moved_dead" not in table
    assert [["orders", "0", "12"], ["mail", "1", "0"]] == [
        line.split() for line in table.splitlines()[1:]
    ]
