"""``cassieq dead ...`` on the real node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.dead_letter import headers_of
from tests.fixtures.commands import CommandLine

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Letters:
    """Three letters: two rejected for one reason, one for another; ``a`` has a tag and a header."""

    queue: cassieq.Queue
    dead: cassieq.Queue


@pytest.fixture
def letters(client: cassieq.Client, queue_name: str) -> Letters:
    dead = client.create_queue(f"{queue_name}.dead", linger=0)
    queue = client.create_queue(queue_name, linger=0, dead_letter_queue=dead.name)
    queue.put(b"a", tag="t", headers={"customer": "7"})
    queue.put_many([b"b", b"\xff"])
    found = sorted(queue.get(10) + queue.get(10), key=lambda one: one.body)
    queue.reject(found[:2], reason="timeout")
    queue.reject(found[2:], reason="no such customer")
    client.repair(queue.name)
    return Letters(queue, dead)


def bodies(queue: cassieq.Queue) -> list[bytes]:
    return sorted(one.body for one in queue.peek())


def test_list_counts_by_source_queue_and_reason(cli: CommandLine, letters: Letters) -> None:
    one = cli("dead", "list", letters.dead.name, "--json")
    every = cli("dead", "list", "--json")
    text = cli("dead", "list", letters.dead.name)

    assert [("timeout", 2), ("no such customer", 1)] == [
        (found["reason"], found["messages"]) for found in one.objects
    ]
    assert {(letters.dead.name, letters.queue.name)} == {
        (found["queue"], found["source_queue"]) for found in one.objects
    }
    assert all(found["first_death"] <= found["last_death"] for found in one.objects)
    assert one.objects == [found for found in every.objects if found["queue"] == letters.dead.name]
    assert letters.queue.name not in {found["queue"] for found in every.objects}
    assert [letters.dead.name, letters.queue.name, "timeout", "2"] == text.lines[1].split()[:4]


def test_show_has_where_from_why_and_the_body(cli: CommandLine, letters: Letters) -> None:
    found = {one["body"]: one for one in cli("dead", "show", letters.dead.name, "--json").objects}
    text = cli("dead", "show", letters.dead.name, "--where", "tag=t")

    assert {"a", "b", "/w=="} == found.keys()
    assert (letters.queue.name, "timeout", 1, "t", None) == tuple(
        found["a"][key] for key in ("source_queue", "reason", "deliveries", "tag", "receipt")
    )
    assert found["a"]["first_time"] < found["a"]["last_time"]
    assert "base64" == found["/w=="]["encoding"]
    (line,) = text.lines[1:]
    assert [found["a"]["message_id"], letters.queue.name, "timeout", "1"] == line.split()[:4]
    assert ["t", "1", "a"] == line.split()[-3:]
    assert 3 == len(letters.dead.peek())


def test_show_has_the_first_line_and_the_size_and_the_whole_body_when_asked(
    cli: CommandLine, client: cassieq.Client, queue_name: str
) -> None:
    dead = client.create_queue(queue_name, linger=0)
    bodies = [b"one\ntwo\n", b"base64:AAEC", b"\x00\xff\n\x01", b"x" * 500, b"plain", b"\n"]
    sizes = {one: str(len(one)) for one in bodies}
    dead.put_many(bodies)

    short = [line.split()[-2:] for line in cli("dead", "show", dead.name).lines[1:]]
    whole = [line.split()[-2:] for line in cli("dead", "show", dead.name, "--body").lines[1:]]

    assert [
        [sizes[bodies[0]], "one..."],
        [sizes[bodies[1]], "base64\\x3aAAEC"],
        [sizes[bodies[2]], "base64:AP8KAQ=="],
        ["500", "x" * 120 + "..."],
        ["5", "plain"],
        ["1", "..."],
    ] == short
    assert [
        ["8", "one\\ntwo\\n"],
        ["11", "base64\\x3aAAEC"],
        ["4", "base64:AP8KAQ=="],
        ["500", "x" * 500],
        ["5", "plain"],
        ["1", "\\n"],
    ] == whole


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((), [b"a", b"b", b"\xff"]),
        (("reason=timeout",), [b"a", b"b"]),
        (("reason=timeout", "tag=t"), [b"a"]),
        (("reason=timeout", "reason=no such customer"), [b"a", b"b", b"\xff"]),
        (("header.customer=7",), [b"a"]),
        (("tag=",), [b"b", b"\xff"]),
        (("source-queue=another",), []),
    ],
)
def test_where_chooses_what_is_shown_and_redriven(
    cli: CommandLine, letters: Letters, where: tuple[str, ...], expected: list[bytes]
) -> None:
    flags = [flag for one in where for flag in ("--where", one)]
    shown = cli("dead", "show", letters.dead.name, *flags, "--json")
    done = cli("dead", "redrive", letters.dead.name, *flags, "--yes", "--json")

    assert (0 if expected else 3, len(expected)) == (shown.code, len(shown.lines))
    assert (0, len(expected), 0) == (done.code, done.object["moved"], done.object["waiting"])
    assert expected == bodies(letters.queue)
    assert 3 - len(expected) == len(letters.dead.peek())


def test_a_message_id_or_a_time_chooses(cli: CommandLine, letters: Letters) -> None:
    by_body = {one.body: one for one in letters.dead.peek()}
    times = sorted(
        time for one in by_body.values() if (time := headers_of(one.headers).last_time) is not None
    )

    def shown(*flags: str) -> int:
        return len(cli("dead", "show", letters.dead.name, *flags, "--json").lines)

    assert 1 == shown("--where", f"message-id={by_body[b'b'].message_id}")
    assert 3 == len(times)
    assert (3, 0) == (shown("--after", times[0].isoformat()), shown("--before", str(times[0])))
    assert 3 == shown("--after", "2020-01-01", "--before", "2999-01-01T00:00")
    assert 0 == shown("--after", "2999-01-01")
    assert 2 == shown("--max-messages", "2")
    assert (3, 0) == (shown("--after", "5m"), shown("--before", "5m"))
    assert (3, 0) == (shown("--before", "0s"), shown("--after", "0"))
    assert 2 == cli("dead", "show", letters.dead.name, "--after", "5 parsecs").code


def test_a_dry_run_a_limit_and_another_target(
    cli: CommandLine, client: cassieq.Client, letters: Letters
) -> None:
    other = client.create_queue(f"{letters.queue.name}.other", linger=0)
    flags = (letters.dead.name, "--to", other.name, "--max-messages", "2")

    foreseen = cli("dead", "redrive", *flags, "--dry-run", "--json").object
    assert ({other.name: 2}, 0) == (foreseen["by_target"], foreseen["moved"])
    assert 3 == len(letters.dead.peek())

    done = cli("dead", "redrive", *flags, "--yes")
    assert ["moved", "2"] in [line.split() for line in done.lines]
    assert [f"by_target.{other.name}", "2"] in [line.split() for line in done.lines]
    assert (2, 1, 0) == tuple(len(one.peek()) for one in (other, letters.dead, letters.queue))


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
def test_on_a_terminal_it_asks_with_the_numbers(
    cli: CommandLine, letters: Letters, typed: str, code: int
) -> None:
    done = cli.in_a_terminal("dead", "redrive", letters.dead.name, after="[y/N]", typed=typed)
    assert code == done.code, done
    assert (
        f"Redrive 3 messages of queue '{letters.dead.name}' (3 to '{letters.queue.name}')?"
        in done.out
    )
    assert (3 if code == 0 else 0) == len(letters.queue.peek())


def test_without_a_terminal_it_wants_yes(cli: CommandLine, letters: Letters) -> None:
    done = cli("dead", "redrive", letters.dead.name)
    assert 2 == done.code
    assert "--yes" in done.err
    assert 3 == len(letters.dead.peek())


def test_a_live_queue_is_refused_by_a_slip_of_the_name(cli: CommandLine, letters: Letters) -> None:
    assert 0 == cli("dead", "redrive", letters.dead.name, "--yes").code
    for flags in (("--yes",), ("--dry-run",), ("--yes", "--where", "reason=redrive")):
        done = cli("dead", "redrive", letters.queue.name, *flags)
        assert (2, "") == (done.code, done.out)
        assert f"no queue names '{letters.queue.name}' as its dead-letter queue" in done.err
        assert "name a queue with --to" in done.err
    assert (3, 0) == (len(letters.queue.peek()), len(letters.dead.peek()))


def test_what_cannot_go_back_is_exit_code_1_and_says_why(
    cli: CommandLine, letters: Letters
) -> None:
    letters.dead.put(b"put there by hand")
    done = cli("dead", "redrive", letters.dead.name, "--yes", "--json")
    assert (1, 3, 1) == (done.code, done.object["moved"], done.object["homeless"])
    assert "1 messages stay" in done.err
    assert [b"put there by hand"] == bodies(letters.dead)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--where", "colour=red"), "colour=red"),
        (("--where", "tag"), "KEY=VALUE"),
        (("--where", "header.=x"), "header.NAME"),
        (("--before", "yesterday"), "--before is 'yesterday'"),
        (("--max-messages", "0"), "--max-messages"),
    ],
)
def test_a_wrong_condition_is_exit_code_2_and_named(
    cli: CommandLine, letters: Letters, flags: tuple[str, str], named: str
) -> None:
    for command in (("show",), ("redrive", "--yes")):
        done = cli("dead", *command, letters.dead.name, *flags)
        assert (2, "") == (done.code, done.out)
        assert named in done.err
    assert 3 == len(letters.dead.peek())
