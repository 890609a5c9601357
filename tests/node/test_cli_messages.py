"""``cassieq put``, ``get``, ``ack`` and ``peek`` on a real queue; exit codes, pipes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.moments import time_of
from cassieq_spark.queue.message import proof_of
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    from pathlib import Path


NO_UTF8 = b"\xff\x00\xfe"


def bodies(queue: cassieq.Queue) -> list[bytes]:
    return sorted(message.body for message in queue.peek(1_000))


def lie(queue: cassieq.Queue) -> dict[str, int]:
    stats = queue.stats()
    return {"visible": stats.visible, "in_flight": stats.in_flight, "delayed": stats.delayed}


# --- put ------------------------------------------------------------------------------------------


def test_put_prints_the_id_of_each_message_that_it_stored(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    done = cli("put", queue.name, "one", "two", "", "--tag", "t", "--header", "k=v=w")

    found = sorted(queue.peek(), key=lambda message: message.id)
    assert (0, [message.message_id for message in found]) == (done.code, done.lines)
    assert [b"one", b"two", b""] == [message.body for message in found]
    assert [("t", {"k": "v=w"})] * 3 == [(message.tag, dict(message.headers)) for message in found]


def test_put_takes_a_message_id_and_a_delay(cli: CommandLine, queue: cassieq.Queue) -> None:
    chosen = str(new_uuid())

    done = cli("put", queue.name, "x", "--message-id", chosen, "--delay", "10m", "--json")

    assert (0, {"message_id": chosen}) == (done.code, done.object)
    assert {"visible": 0, "in_flight": 0, "delayed": 1} == lie(queue)


def test_what_is_put_with_a_time_is_scheduled_and_cancelled_once(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    far = time_of(SystemClock().now_us() + 30 * 86_400_000_000).isoformat()
    put = cli("put", queue.name, "x", "--due-at", far)
    assert (0, 1) == (put.code, len(put.lines))
    hours = cli("queue", "scheduled", queue.name, "--json")
    assert (0, 0, 1) == (hours.code, hours.object["priority"], hours.object["messages"])
    assert hours.object["from"] <= far

    done = cli("cancel", queue.name, put.lines[0], "--json")
    assert (0, {"message_id": put.lines[0], "cancelled": True}) == (done.code, done.object)
    assert 0 == queue.stats().scheduled == len(cli("queue", "scheduled", queue.name).lines)
    late = cli("cancel", queue.name, queue.put(b"y", message_id=new_uuid()))
    assert (1, ["too late: it was given to somebody, or is not there"]) == (late.code, late.lines)


def test_a_time_that_is_none_is_refused_by_its_flag(cli: CommandLine, queue: cassieq.Queue) -> None:
    for wrong in ("tomorrow", "2030-01-01T09:00", ""):
        done = cli("put", queue.name, "x", "--due-at", wrong)
        assert 2 == done.code
        assert f"--due-at is {wrong!r}, allowed: a time with a time zone" in done.err
    assert 2 == cli("cancel", queue.name, "no-uuid").code
    assert {"visible": 0, "in_flight": 0, "delayed": 0} == lie(queue)


def test_put_takes_a_time_to_live(cli: CommandLine, queue: cassieq.Queue) -> None:
    assert 0 == cli("put", queue.name, "x", "--ttl", "2h").code
    (chunk,) = portal.run(queue._lane.messages.scan(BucketNo(0)))
    lives_us = (chunk.expires_us or 0) - chunk.enqueued_us
    assert 7_200_000_000 <= lives_us < 7_260_000_000
    refused = cli("put", queue.name, "x", "--ttl", "0s")
    assert (2, True) == (refused.code, "--ttl is " in refused.err)


def test_put_of_a_key_stores_it_once(cli: CommandLine, queue: cassieq.Queue) -> None:
    refused = cli("put", queue.name, "x", "--dedup-key", "k")
    assert (2, True) == (refused.code, "cassieq queue alter QUEUE --dedup-window 1h" in refused.err)
    assert 0 == cli("queue", "alter", queue.name, "--dedup-window", "1h").code

    first = cli("put", queue.name, "first", "--dedup-key", "k")
    again = cli("put", queue.name, "again", "--dedup-key", "k")
    as_json = cli("put", queue.name, "again", "--dedup-key", "k", "--json")

    assert (0, "") == (first.code, first.err)
    assert (0, first.out) == (again.code, again.out)
    assert "duplicate: it was put before with this key" in again.err
    assert {"message_id": first.out.strip(), "duplicate": True} == json.loads(as_json.out)
    assert [b"first"] == [one.body for one in queue.get()]
    for wrong, says in ((("a", "b"), "--dedup-key names one message"), (("a",), "--dedup-key is ")):
        refused = cli("put", queue.name, *wrong, "--dedup-key", "k" * 2_000)
        assert (2, True) == (refused.code, says in refused.err)


def test_put_of_a_dash_is_a_message_for_each_line_also_an_empty_or_unended_one(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    done = cli("put", queue.name, "-", stdin=b"a\n\n\xff\nd")

    assert (0, 4) == (done.code, len(set(done.lines)))
    assert [b"", b"a", b"d", NO_UTF8[:1]] == bodies(queue)


def test_put_of_a_file_is_one_message_with_all_its_bytes(
    cli: CommandLine, queue: cassieq.Queue, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(b"\n" + NO_UTF8 + b"\n")

    from_file = cli("put", queue.name, "--file", str(tmp_path / "x.bin"))
    from_stdin = cli("put", queue.name, "--file", "-", stdin=b"2\n2\n")

    assert (0, 0) == (from_file.code, from_stdin.code)
    assert [b"\n" + NO_UTF8 + b"\n", b"2\n2\n"] == bodies(queue)


def test_put_stores_a_line_when_it_comes_and_not_when_the_pipe_ends(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    process = cli.start("put", queue.name, "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\nhalf of the sec")
    process.stdin.flush()
    assert 36 == len(process.stdout.readline().strip())
    assert [b"first"] == bodies(queue)

    process.stdin.write(b"ond\n")
    done = end(process)

    assert (0, "", 1) == (done.code, done.err, len(done.lines))
    assert [b"first", b"half of the second"] == bodies(queue)


def test_put_keeps_the_bytes_of_an_argument_that_is_no_text(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    assert 0 == end(cli.start("put", queue.name, os.fsdecode(b"\xff\xfe"))).code
    assert [b"\xff\xfe"] == bodies(queue)


def test_put_into_no_queue_is_exit_code_1_and_one_line(cli: CommandLine, queue_name: str) -> None:
    done = cli("put", queue_name, "x")

    assert (1, "") == (done.code, done.out)
    assert done.err.startswith("[cassieq:queue_not_found] ")
    assert "Traceback" not in done.err


# --- get, peek, ack -------------------------------------------------------------------------------


def test_get_prints_receipt_and_body_on_a_line_and_ack_takes_it_back(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put(b"two\nlines")

    got = cli("get", queue.name)
    receipt, _, body = got.lines[0].partition("\t")

    assert (0, 1, "two\\nlines") == (got.code, len(got.lines), body)
    assert {"visible": 0, "in_flight": 1, "delayed": 0} == lie(queue)

    acked = cli("ack", queue.name, "-", stdin=got.out)

    assert (0, f"acked\t{receipt}\n") == (acked.code, acked.out)
    assert {"visible": 0, "in_flight": 0, "delayed": 0} == lie(queue)


def test_get_in_json_has_the_whole_message_and_says_where_a_body_is_base64(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put("é".encode(), tag="t", headers={"k": "v"})
    queue.put(NO_UTF8)

    done = cli("get", queue.name, "--max-messages", "10", "--json", "--visibility-timeout", "5m")
    text, binary = sorted(done.objects, key=lambda one: one["id"])

    assert 0 == done.code
    assert ("é", "t", {"k": "v"}, 1) == (
        text["body"],
        text["tag"],
        text["headers"],
        text["delivery_count"],
    )
    assert "encoding" not in text
    assert ("/wD+", "base64", None, {}) == (
        binary["body"],
        binary["encoding"],
        binary["tag"],
        binary["headers"],
    )
    queue.ack([text["receipt"], binary["receipt"]])
    assert {"visible": 0, "in_flight": 0, "delayed": 0} == lie(queue)


def test_a_body_that_is_no_text_is_marked_on_its_line(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put(NO_UTF8)
    assert "base64:/wD+" == cli("peek", queue.name).lines[0].partition("\t")[2]


def test_get_leases_one_message_unless_it_is_told_and_for_how_long_and_for_whom(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"x"] * 5)

    (one,) = cli("get", queue.name, "--json", "--consumer", "me").objects
    three = cli(
        "get", queue.name, "--json", "--max-messages", "3", "--visibility-timeout", "2h"
    ).objects

    assert 3 == len(three)
    assert 1 == queue.stats().consumers["me"]
    assert one["visible_until"] < three[0]["visible_until"]


def test_get_with_ack_leaves_nothing_to_ack(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"a", b"b"])

    done = cli("get", queue.name, "--max-messages", "5", "--ack")

    assert (0, 2) == (done.code, len(done.lines))
    assert {"visible": 0, "in_flight": 0, "delayed": 0} == lie(queue)


@pytest.mark.parametrize("command", ["get", "peek"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_message_is_exit_code_3_and_no_output(
    cli: CommandLine, queue: cassieq.Queue, command: str, flags: list[str]
) -> None:
    done = cli(command, queue.name, *flags)
    assert (3, "", "") == (done.code, done.out, done.err)


def test_get_that_waits_takes_a_message_that_comes(cli: CommandLine, queue: cassieq.Queue) -> None:
    process = cli.start("get", queue.name, "--wait", "2m", "--ack")
    queue.put(b"late")
    done = end(process)
    assert (0, "late") == (done.code, done.out.rstrip("\n").partition("\t")[2])


def test_peek_leases_nothing_and_has_no_receipt(cli: CommandLine, queue: cassieq.Queue) -> None:
    (message_id,) = queue.put_many([b"x"])

    text, found = cli("peek", queue.name), cli("peek", queue.name, "--json").object

    assert (0, f"{message_id}\tx\n") == (text.code, text.out)
    assert (None, None) == (found["receipt"], found["visible_until"])
    assert {"visible": 1, "in_flight": 0, "delayed": 0} == lie(queue)


def test_ack_of_a_receipt_that_was_never_handed_out_is_invalid_and_exit_code_1(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put(b"a")
    (message,) = queue.get()
    never = replace(proof_of(message), bucket=BucketNo(77)).encode()

    done = cli("ack", queue.name, never, message.receipt)

    assert (1, [f"invalid\t{never}", f"acked\t{message.receipt}"]) == (done.code, done.lines)
    assert "1 invalid" in done.err


def test_ack_has_a_verdict_for_each_and_exit_code_1_if_one_is_stale(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"a", b"b", b"c"])
    good, stale, done_before = (message.receipt for message in queue.get(3))
    assert good is not None
    assert stale is not None
    assert done_before is not None
    queue.release(stale)
    queue.ack(done_before)

    done = cli("ack", queue.name, good, stale, done_before, "--json")

    assert 1 == done.code
    assert [
        {"receipt": good, "verdict": "acked"},
        {"receipt": stale, "verdict": "stale"},
        {"receipt": done_before, "verdict": "already_acked"},
    ] == done.objects
    assert {"visible": 1, "in_flight": 0, "delayed": 0} == lie(queue)


def test_ack_takes_lines_as_get_prints_them_in_json_too(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"a", b"b"])
    got = cli("get", queue.name, "--max-messages", "2", "--json")

    done = cli("ack", queue.name, "-", stdin=got.out + "\n")

    assert (0, 2) == (done.code, len(done.lines))
    assert {"visible": 0, "in_flight": 0, "delayed": 0} == lie(queue)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "{}", '{"receipt": 7}', "[", "{", '{"receipt": ' + "[" * 100_000],
    ids=lambda line: line[:15],
)
def test_what_is_no_receipt_is_refused_and_nothing_is_acked(
    cli: CommandLine, queue: cassieq.Queue, line: str
) -> None:
    queue.put(b"x")
    receipt = cli("get", queue.name).out

    done = cli("ack", queue.name, "-", stdin=f"{receipt}{line}\n")

    assert (1, "") == (done.code, done.out)
    assert "[cassieq:receipt_invalid]" in done.err
    assert {"visible": 0, "in_flight": 1, "delayed": 0} == lie(queue)


# --- pipes and signals ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1_000])
def test_a_reader_that_went_away_is_quiet_and_what_it_did_not_read_is_given_back(
    cli: CommandLine, queue: cassieq.Queue, size: int
) -> None:
    queue.put_many([b"x" * size] * 100)
    read, write = os.pipe()
    os.close(read)

    process = cli.start("get", queue.name, "--max-messages", "100", "--ack", stdout=write)
    os.close(write)
    done = end_of_stderr(process)

    assert (141, "") == done
    assert {"visible": 100, "in_flight": 0, "delayed": 0} == lie(queue)


def test_ctrl_c_while_get_waits_ends_it_with_130_and_nothing_leased(
    cli: CommandLine, queue: cassieq.Queue, client: cassieq.Client
) -> None:
    process = cli.start("get", queue.name, "--wait", "1h")
    wait_until(lambda: is_waiting(process), describe="the command to wait")
    process.send_signal(signal.SIGINT)
    done = end(process)

    assert (130, "", "") == (done.code, done.out, done.err)
    client.queue(queue.name).put(b"x")
    assert {"visible": 1, "in_flight": 0, "delayed": 0} == lie(queue)


def test_a_signal_between_a_claim_and_its_receipts_gives_the_messages_back(
    cli: CommandLine, queue: cassieq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many([b"a", b"b"])
    get = cassieq.Queue.get

    def get_and_be_interrupted(*args: Any, **more: Any) -> list[cassieq.Delivery]:
        found = get(*args, **more)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(cassieq.Queue, "get", get_and_be_interrupted)
    done = cli("get", queue.name, "--max-messages", "2", "--ack")

    assert (130, "") == (done.code, done.out)
    assert {"visible": 2, "in_flight": 0, "delayed": 0} == lie(queue)


def end_of_stderr(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = process.communicate(timeout=120)
    return process.returncode, err.decode()


def is_waiting(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has taken the signals over: its bit is set among the caught ones."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:  # noqa: PTH123 - /proc
        caught = next(line for line in status if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)


def test_json_lines_are_the_same_objects_that_a_program_reads(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put(b'{"n": 1}')
    (line,) = cli("peek", queue.name, "--json").lines
    assert {"n": 1} == json.loads(json.loads(line)["body"])
