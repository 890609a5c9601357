"""``cassieq schedule ...`` on the real node."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.entropy import new_uuid
from tests.fixtures.cassandra import own_keyspace
from tests.fixtures.commands import CommandLine

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

pytestmark = pytest.mark.invariant("I11")


@pytest.fixture(scope="module")
def cli(cassandra: EmbeddedCassandra) -> CommandLine:
    keyspace = own_keyspace(cassandra, f"schedules_{new_uuid().hex[:8]}")
    cli = CommandLine(cassandra.contact_points, keyspace=keyspace)
    assert 0 == cli("bootstrap").code
    assert 0 == cli("queue", "create", "jobs").code
    return cli


def test_a_schedule_is_created_shown_altered_paused_and_deleted(cli: CommandLine) -> None:
    made = cli(
        *("schedule", "create", "report", "--queue", "jobs", "--cron", "30 2 * * MON-FRI"),
        *("--timezone", "Europe/Berlin", "--body", "nightly", "--header", "a=b", "--json"),
    )
    assert 0 == made.code, made.err
    shown = json.loads(made.out)
    assert ("report", "jobs", "active", "nightly") == tuple(
        shown[one] for one in ("schedule", "queue", "status", "body")
    )
    times = [json.loads(one) for one in cli("schedule", "next", "report", "--json").lines]
    assert 5 == len(times)
    assert all("T02:30:00+0" in one["time"] for one in times)

    altered = cli("schedule", "alter", "report", "--every", "5m", "--reset", "header", "--json")
    assert 0 == altered.code, altered.err
    assert (300.0, 36) == tuple(json.loads(altered.out)[one] for one in ("every_s", "occurrences"))
    assert "headers" not in json.loads(altered.out)
    assert "paused" in cli("schedule", "pause", "report").out
    assert "active" in cli("schedule", "resume", "report").out
    assert "every 0:05:00" in cli("schedule", "list").out
    again = cli(
        *("schedule", "backfill", "report", "--from", "2026-01-01T00:00Z"),
        *("--to", "2026-01-01T01:00Z", "--json"),
    )
    assert {"schedule": "report", "put": 0} == json.loads(again.out)  # it began later
    ran = cli("schedule", "run", "report", "--json")
    assert "report" == json.loads(ran.out)["schedule"]
    slot = json.loads(cli("get", "jobs", "--json").out)["headers"]["cassieq-slot"]
    assert datetime.fromisoformat(json.loads(ran.out)["slot"]) == datetime.fromisoformat(slot)
    passed = cli("schedule", "dispatch", "--once", "--json")
    assert (1, 0) == tuple(json.loads(passed.out)[one] for one in ("schedules", "looked_at"))
    refused = cli("schedule", "delete", "report")
    assert 2 == refused.code
    assert "--yes" in refused.err
    assert 0 == cli("schedule", "delete", "report", "--yes").code
    assert 1 == cli("schedule", "show", "report").code


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "one of cron, every, at"),
        (["--cron", "1 2 3"], "it has 3 fields"),
        (["--cron", "* * * * *", "--timezone", "Mars"], "IANA"),
        (["--every", "soon"], "--every"),
        (["--every", "1m", "--header", "nothing"], "NAME=VALUE"),
        (["--every", "1m", "--body", "a", "--file", "b"], "Leave one out"),
        (["--every", "1m", "--misfire", "panic"], "misfire"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(
    cli: CommandLine, given: list[str], says: str
) -> None:
    done = cli("schedule", "create", "bad", "--queue", "jobs", *given)
    assert 2 == done.code, done.err
    assert says in done.err
    assert 1 == cli("schedule", "show", "bad").code


FILE = """
owner = "shop"

[schedules.nightly]
queue = "jobs"
cron = "30 2 * * *"
timezone = "Europe/Berlin"
file = "body.json"
headers = {a = "b"}

[schedules.once]
queue = "jobs"
at = 2099-01-01T09:00:00Z
ttl = "5m"
"""


def test_a_file_is_applied_twice_and_pruned(cli: CommandLine, tmp_path: Path) -> None:
    file, body = tmp_path / "schedules.toml", tmp_path / "body.json"
    file.write_text(FILE)
    body.write_text("{}")

    def apply(*flags: str) -> list[tuple[str, str]]:
        done = cli("schedule", "apply", str(file), *flags, "--json")
        assert 0 == done.code, done.err
        found = [json.loads(one) for one in done.lines]
        return [(one["schedule"], one["action"]) for one in found]

    cli("schedule", "create", "by-hand", "--queue", "jobs", "--every", "1h")
    assert [("nightly", "create"), ("once", "create")] == apply("--dry-run", "--prune")
    assert 1 == cli("schedule", "show", "once").code
    assert [("nightly", "create"), ("once", "create")] == apply("--prune")
    assert [("nightly", "keep"), ("once", "keep")] == apply("--prune")
    shown = json.loads(cli("schedule", "show", "nightly", "--json").out)
    assert ("{}", "shop", {"a": "b"}) == (shown["body"], shown["owner"], shown["headers"])

    body.write_text("[]")
    file.write_text(FILE.replace("[schedules.once]", "[schedules.other]").replace("30 2", "31 2"))
    told = cli("schedule", "apply", str(file), "--dry-run").out
    assert "cron: 30 2 * * * -> 31 2 * * *; body: {} -> []" in told
    wanted = [("nightly", "alter"), ("once", "delete"), ("other", "create")]
    assert wanted == apply("--prune", "--dry-run") == apply("--prune")
    names = [json.loads(one)["schedule"] for one in cli("schedule", "list", "--json").lines]
    assert ["by-hand", "nightly", "other"] == sorted(names)
    file.write_text('owner = "shop"')
    assert [("nightly", "delete"), ("other", "delete")] == apply("--prune")
    assert 0 == cli("schedule", "delete", "by-hand", "--yes").code


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("owner = ", "is TOML"),
        ("", "an owner"),
        ('owner = "a"\nqueues = 1', "'queues'"),
        ('owner = "a"\nschedules = 1', "is TOML"),
        ('owner = "a"\n[schedules]\nx = 1', "is TOML"),
        ('owner = "a"\n[schedules.x]\nqueue = "jobs"\nevery = "soon"', "every"),
        ('owner = "a"\n[schedules.x]\nqueue = "jobs"\nat = 2030-01-01T00:00:00', "time zone"),
        ('owner = "a"\n[schedules.x]\nqueue = "jobs"\nfile = "gone"', "cannot be read"),
        ('owner = "a"\n[schedules.x]\nqueue = "jobs"\nevery = 60\nevry = 1', "schedule 'x'"),
        ('owner = 5\n[schedules.x]\nqueue = "jobs"\nevery = 60', "owner is 5"),
    ],
)
def test_a_bad_file_is_named_and_nothing_is_written(
    cli: CommandLine, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "schedules.toml"
    file.write_text(text)
    done = cli("schedule", "apply", str(file))
    assert 2 == done.code, done.err
    assert says in " ".join(done.err.split()), done.err
    assert 1 == cli("schedule", "show", "x").code
