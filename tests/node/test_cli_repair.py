"""``cassieq repair`` takes what `jobs/repair.py` takes, and ends with the same exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.cli.repair import show
from cassieq_spark.cli.shell import Out
from cassieq_spark.model.bucket import sealing
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.repair.report import VerifyReport
from cassieq_spark.store import portal
from tests.fixtures.commands import CommandLine
from tests.fixtures.rows import leased_twice

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor


def test_a_dry_run_says_what_a_pass_would_do_and_does_nothing(cli: CommandLine, door: Door) -> None:
    door.queue.put(b"m")
    portal.run(door.lane.buckets.insert(BucketNo(0), sealing(now_us=door.clock.now_us())))
    foreseen = [cli("repair", door.queue.name, "--dry-run", "--json") for _ in range(2)]
    done = cli("repair", door.queue.name, "--json")

    assert [(0, 1)] * 3 == [
        (one.code, one.object["queues"][0]["seals_finished"]) for one in (*foreseen, done)
    ]


def test_a_redrive_shows_buckets_on_a_terminal_and_nothing_in_a_pipe(
    cli: CommandLine, open_door: OpenDoor
) -> None:
    door, target = open_door(bucket_size=2), open_door(".to")
    for number in range(10):
        door.put(b"%d" % number)
    command = ("dead", "redrive", door.queue.name, "--to", target.queue.name, "--yes")

    shown, piped = cli.in_a_terminal(*command), cli(*command)

    assert "10 of 10 buckets" in shown.out
    assert "of 10 buckets" not in piped.err + piped.out


@pytest.mark.parametrize(("flags", "doing"), [((), "Repairing"), (("--verify",), "Verifying")])
def test_a_terminal_shows_how_far_it_is_and_a_pipe_does_not(
    cli: CommandLine, door: Door, flags: tuple[str, ...], doing: str
) -> None:
    door.queue.put(b"m")
    shown = cli.in_a_terminal("repair", door.queue.name, *flags)
    piped = cli("repair", door.queue.name, *flags)

    assert (0, 0) == (shown.code, piped.code)
    assert f"{doing} {door.queue.name[:20]}" in shown.out
    assert "1 of 1 buckets" in shown.out
    assert f"{doing} " not in piped.out + piped.err


def test_a_full_pass_sweeps_below_the_repair_pointer(cli: CommandLine, door: Door) -> None:
    door.put(b"m")
    door.ack(portal.run(door.reader().get(10)))
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, 1))

    assert 0 == cli("repair", door.queue.name, "--json").object["queues"][0]["swept"]
    assert 1 == cli("repair", door.queue.name, "--full", "--json").object["queues"][0]["swept"]


def test_a_verify_finds_nothing_or_ends_with_exit_code_1(cli: CommandLine, door: Door) -> None:
    (((_, bucket), _),) = door.put_batch(0, b"m").buckets
    well = cli("repair", door.queue.name, "--verify", "--json")
    assert (0, [], 1) == (well.code, well.object["findings"], well.object["messages"])

    portal.run(door.lane.change_bucket(bucket, lambda row, *_: leased_twice(row, Runs.span(0, 0))))
    ill, text = (cli("repair", door.queue.name, "--verify", *more) for more in (("--json",), ()))
    assert (1, ["message_in_two_states"]) == (
        ill.code,
        [one["kind"] for one in ill.object["findings"]],
    )
    assert f"message_in_two_states: queue '{door.queue.name}'" in ill.err
    assert 1 == text.code
    assert [["findings", "1"], ["problems", "0"]] == [line.split() for line in text.lines[-2:]]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_verify_that_could_not_look_everywhere_says_so_and_fails(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(VerifyReport(problems=["bucket 7 of queue 'q': no quorum"]), Out(as_json=as_json))
    said = capsys.readouterr()
    assert "bucket 7 of queue 'q': no quorum" in said.err
    assert "problems" in said.out


@pytest.mark.parametrize(
    "flags", [("--full", "--dry-run"), ("--full", "--verify"), ("--dry-run", "--verify")]
)
def test_two_at_once_are_exit_code_2(cli: CommandLine, flags: tuple[str, str]) -> None:
    done = cli("repair", *flags)
    assert (2, "") == (done.code, done.out)
    assert "exclude each other" in done.err
