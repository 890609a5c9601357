"""``cassieq queue ...``, ``bootstrap`` and ``repair`` on the real node."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.embedded.machine import choose_ports
from cassieq_spark.entropy import new_uuid
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

DEFAULTS = {
    "bucket_size": 100_000,
    "priorities": 1,
    "shards": 1,
    "fairness": 0.1,
    "schedule_after_s": 900.0,
    "schedule_period_s": 3600.0,
    "visibility_timeout_s": 30.0,
    "max_deliveries": None,
    "dead_letter_queue": None,
    "repair_timeout_s": 15.0,
    "linger_s": 0.02,
    "gap_timeout_s": 10.0,
    "retention_s": None,
    "dedup_window_s": None,
    "dead_letter_expired": False,
}


def names(client: cassieq.Client) -> set[str]:
    return {info.name for info in client.queues()}


def test_bootstrap_makes_a_keyspace_with_the_replication_it_is_told_and_again_nothing(
    cassandra: EmbeddedCassandra,
) -> None:
    keyspace = f"cli_{new_uuid().hex[:12]}"
    cli = CommandLine(cassandra.contact_points, keyspace=keyspace)
    assert 1 == cli("queue", "list").code

    first = cli("bootstrap", "--replication", f"{cassandra.datacenter}=1", "--json")
    again = cli("bootstrap", "--json")

    expected = {"keyspace": keyspace, "is_ready": True}
    assert (0, expected) == (first.code, first.object)
    assert (0, expected) == (again.code, again.object)
    assert (0, "") == (cli("queue", "list").code, cli("queue", "list").out)


def test_bootstrap_hands_each_replication_to_cassandra(cassandra: EmbeddedCassandra) -> None:
    cli = CommandLine(cassandra.contact_points, keyspace=f"cli_{new_uuid().hex[:12]}")
    refused = cli("bootstrap", "--replication", f"{cassandra.datacenter}=1", "--replication", "x=3")
    assert refused.code != 0
    assert "x" in refused.err
    assert "Traceback" not in refused.err


def test_bootstrap_of_a_keyspace_that_is_there_otherwise_is_exit_code_1(
    cassandra: EmbeddedCassandra,
) -> None:
    cli = CommandLine(cassandra.contact_points, keyspace=f"cli_{new_uuid().hex[:12]}")
    here = cassandra.datacenter
    assert 0 == cli("bootstrap", "--replication", f"{here}=1").code

    other = cli("bootstrap", "--replication", f"{here}=3")
    unknown = cli("bootstrap", "--replication", f"{here}=1", "--replication", "x=3")

    assert (1, "") == (other.code, other.out)
    assert other.err.startswith("[cassieq:replication_differs] ")
    assert f"'{here}': '1'" in other.err
    assert f"'{here}': '3'" in other.err
    assert (2, "") == (unknown.code, unknown.out)
    assert "names data centre 'x'" in unknown.err


@pytest.mark.parametrize(
    "given",
    [
        *(("",), ("x",), ("=1",), ("x=",), ("x=-1",), ("x=1.5",), ("class=3",), ("x=\u0663",)),
        *(("x=" + "1" * 5_000,), ("x=1", "x=2")),
    ],
    ids=lambda given: " ".join(given)[:20],
)
def test_a_replication_that_cannot_be_is_exit_code_2(
    cli: CommandLine, given: tuple[str, ...]
) -> None:
    done = cli("bootstrap", *(word for one in given for word in ("--replication", one)))

    assert (2, "") == (done.code, done.out)
    assert done.err.startswith("[cassieq:option_invalid] --replication ")


def test_create_is_idempotent_and_other_settings_are_refused(
    cli: CommandLine, client: cassieq.Client, queue_name: str
) -> None:
    flags = ("--visibility-timeout", "5m", "--bucket-size", "10", "--max-deliveries", "3")
    expected = {
        **DEFAULTS,
        "queue": queue_name,
        "visibility_timeout_s": 300.0,
        "bucket_size": 10,
        "max_deliveries": 3,
    }

    created = cli("queue", "create", queue_name, *flags, "--json")
    again = cli("queue", "create", queue_name, *flags, "--json")
    unnamed = cli("queue", "create", queue_name, "--json")
    other = cli("queue", "create", queue_name, "--bucket-size", "20", "--json")

    assert (0, {**expected, "created": True}) == (created.code, created.object)
    assert (0, {**expected, "created": False}) == (again.code, again.object)
    assert "was there already" in cli("queue", "create", queue_name, *flags).err
    assert (0, {**expected, "created": False}) == (unnamed.code, unnamed.object)
    assert 1 == other.code
    assert "[cassieq:queue_exists]" in other.err
    assert 300 == client.queue(queue_name).settings.visibility_timeout_s


def test_create_takes_what_no_flag_says_from_the_file(
    cli: CommandLine, queue_name: str, tmp_path: Path
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[queue]\nvisibility_timeout = "5m"\nlinger = 0.5\n', encoding="utf-8")

    made = cli("queue", "create", queue_name, "--linger", "0", "--config", str(file), "--json")

    assert {
        **DEFAULTS,
        "queue": queue_name,
        "created": True,
        "visibility_timeout_s": 300.0,
        "linger_s": 0.0,
    } == made.object


def test_a_setting_out_of_its_range_is_exit_code_2_and_names_what_is_allowed(
    cli: CommandLine, queue_name: str
) -> None:
    done = cli("queue", "create", queue_name, "--visibility-timeout", "31d")
    assert (2, "") == (done.code, done.out)
    assert "--visibility-timeout is '31d', allowed: a time from 0.1 s to 30 d" in done.err
    assert "seconds, or text such as '30s' or '5m'" in done.err


def test_list_names_every_queue_with_its_settings(cli: CommandLine, queue: cassieq.Queue) -> None:
    text = cli("queue", "list")
    (found,) = (one for one in cli("queue", "list", "--json").objects if one["queue"] == queue.name)

    assert 0 == text.code
    assert queue.name in [line.split()[0] for line in text.lines]
    assert {
        **DEFAULTS,
        "queue": queue.name,
        "visibility_timeout_s": 600.0,
        "linger_s": 0.0,
        "home_datacenter": "datacenter1",
        "created_at": found["created_at"],
    } == found


def test_show_has_settings_and_what_is_in_the_queue(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"x"] * 3)
    queue.get(2, consumer="me")

    found = cli("queue", "show", queue.name, "--json").object
    text = cli("queue", "show", queue.name)

    assert (1, 2, {"me": 2}) == (
        found["stats"]["visible"],
        found["stats"]["in_flight"],
        found["stats"]["consumers"],
    )
    assert 600 == found["visibility_timeout_s"]
    assert ["stats.in_flight", "2"] in [line.split() for line in text.lines]


def test_alter_changes_what_it_is_told_and_resets_to_the_default(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    flags = ("--max-deliveries", "7", "--reset", "visibility-timeout", "--reset", "linger")

    done = cli("queue", "alter", queue.name, *flags, "--json")

    assert (0, {**DEFAULTS, "queue": queue.name, "max_deliveries": 7}) == (done.code, done.object)


def test_purge_drops_all_messages_and_says_how_many(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"x"] * 3)

    done = cli("queue", "purge", queue.name, "--yes", "--json")

    assert (0, {"queue": queue.name, "purged": 3}) == (done.code, done.object)
    assert [] == queue.peek()


def test_pause_and_resume_say_which_priorities_are_paused(
    cli: CommandLine, client: cassieq.Client, queue_name: str
) -> None:
    queue = client.create_queue(queue_name, priorities=2)

    done = cli("queue", "pause", queue.name, "--priority", "1", "--json")
    assert (0, {"queue": queue.name, "paused": [1]}) == (done.code, done.object)
    assert (1,) == queue.paused()

    done = cli("queue", "resume", queue.name, "--json")
    assert (0, {"queue": queue.name, "paused": []}) == (done.code, done.object)
    refused = cli("queue", "pause", queue.name, "--priority", "2")
    assert 2 == refused.code
    assert "[cassieq:option_invalid] --priority" in refused.err


def test_delete_ends_a_queue_and_a_second_time_is_exit_code_1(
    cli: CommandLine, client: cassieq.Client, queue: cassieq.Queue
) -> None:
    done, again = (cli("queue", "delete", queue.name, "-y", "--json") for _ in range(2))

    assert (0, {"queue": queue.name, "deleted": True}) == (done.code, done.object)
    assert queue.name not in names(client)
    assert 1 == again.code
    assert "[cassieq:queue_not_found]" in again.err


@pytest.mark.parametrize("command", ["delete", "purge"])
def test_without_a_terminal_nothing_is_destroyed_unless_it_is_said(
    cli: CommandLine, queue: cassieq.Queue, command: str
) -> None:
    queue.put(b"x")

    done = cli("queue", command, queue.name, stdin="y\n")

    assert 2 == done.code
    assert 1 == queue.stats().visible


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("y\n", 0)])
def test_on_a_terminal_delete_asks_and_does_as_it_is_answered(
    cli: CommandLine,
    client: cassieq.Client,
    queue: cassieq.Queue,
    typed: str,
    code: int,
) -> None:
    done = cli.in_a_terminal("queue", "delete", queue.name, after="[y/N]", typed=typed)

    assert code == done.code, done
    assert f"Delete queue '{queue.name}' with all it holds? [y/N]" in done.out
    assert bool(code) is (queue.name in names(client))


def test_a_password_is_asked_for_on_a_terminal_and_not_shown(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    # This node takes any login: what is tested is the question.
    done = cli.in_a_terminal(
        *("queue", "show", queue.name, "--username", "bob", "--json"),
        after="Password of bob: ",  # the blank comes once nothing is echoed any more
        typed="abracadabra\n",
    )

    assert 0 == done.code, done
    assert "Password of bob:" in done.out
    assert f'"queue": "{queue.name}"' in done.out
    assert "abracadabra" not in done.out + done.err


def test_a_username_without_a_password_and_a_terminal_is_exit_code_2(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    done = cli("queue", "show", queue.name, "--username", "bob")
    assert 2 == done.code
    assert "variable CASSIEQ_PASSWORD" in done.err


def test_repair_reports_what_it_did_for_each_queue(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put(b"x")
    queue.ack(queue.get())

    one = cli("repair", queue.name, "--json")
    text = cli("repair", queue.name)
    nobody = cli("repair", "nobody")

    assert 0 == one.code, one.err
    assert [(queue.name, [])] == [
        (found["queue"], found["problems"]) for found in one.object["queues"]
    ]
    assert [queue.name] == [line.split()[0] for line in text.lines[1:]]
    assert 1 == nobody.code
    assert "[cassieq:queue_not_found]" in nobody.err


def test_nobody_there_is_exit_code_1_and_names_the_address(queue_name: str) -> None:
    port = choose_ports(["127.0.0.1"]).native
    cli = CommandLine(f"127.0.0.1:{port}", keyspace=KEYSPACE)

    done = cli("put", queue_name, "x", "--connect-timeout", "1")

    assert 1 == done.code
    assert "[cassieq:store_unavailable]" in done.err
    assert str(port) in done.err


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the data directory is moved as XDG has it")
def test_a_local_node_is_used_where_nobody_says_another(tmp_path: Path) -> None:
    cli = CommandLine("")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("CASSIEQ_")},
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    port = choose_ports(["127.0.0.1"]).native

    def run(*arguments: str) -> tuple[int, str, str]:
        done = end(cli.start(*arguments, env=environment, cwd=tmp_path))
        return done.code, done.out, done.err

    assert 2 == run("bootstrap")[0]
    try:
        assert 0 == run("cassandra", "start", "--port", str(port), "--heap", "512m")[0]
        assert 0 == run("bootstrap")[0]
        assert 0 == run("queue", "create", "orders")[0]
        config = run("config")[1].splitlines()
    finally:
        stopped = run("cassandra", "stop")
    assert 0 == stopped[0]
    assert ["contactPoints", f"127.0.0.1:{port}", "cassieq", "cassandra", "start"] in [
        line.split() for line in config
    ]


def test_the_command_refuses_asks_with_counts_and_does_not_advise_to_create(
    cli: CommandLine, client: cassieq.Client, queue_name: str
) -> None:
    dead = client.create_queue(f"{queue_name}.dead", linger=0)
    client.create_queue(queue_name, max_deliveries=3, dead_letter_queue=dead.name)
    dead.put_many([b"x"] * 3)

    refused = cli("queue", "delete", dead.name, "--yes")
    assert (1, True) == (refused.code, "or delete it with --force" in refused.err)
    held = cli("queue", "delete", dead.name, "--yes", "--force", "--if-empty")
    assert (1, True) == (held.code, "or without the condition that it is empty" in held.err)
    for command in ("delete", "purge"):
        asked = cli.in_a_terminal("queue", command, dead.name, after="[y/N]", typed="n\n")
        assert (1, True) == (asked.code, "It holds 3 visible messages." in asked.out), asked.out
    assert 0 == cli("queue", "delete", dead.name, "--yes", "--force").code
    again = cli("queue", "delete", dead.name, "--yes")
    assert 1 == again.code
    assert "Nothing was deleted. See cassieq queue list" in again.err
    assert "queue create" not in again.err
    purged = cli("queue", "purge", dead.name, "--yes")
    assert "or see cassieq queue list for all names" in purged.err
