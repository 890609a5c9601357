"""Where the command line takes its options from; no Cassandra is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import typer
from typer.testing import CliRunner

from cassieq_spark.cli.app import app
from cassieq_spark.cli.flags import Seconds, find_file, flag_of, options_of
from cassieq_spark.embedded import daemon
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options import OPTIONS, parse_connection
from cassieq_spark.options.parse import OTHERS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, variable or node of whoever runs the tests."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(platformdirs, "user_config_path", lambda _: tmp_path / "config")
    monkeypatch.setattr(daemon, "default_data_dir", lambda: tmp_path / "no-node")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def config(*arguments: str) -> dict[str, tuple[Any, str]]:
    """(value, origin) by option."""
    code, out, err = run("config", "--json", *arguments)
    assert 0 == code, err
    lines = [json.loads(line) for line in out.splitlines()]
    return {one["option"]: (one["value"], one["from"]) for one in lines}


def test_a_flag_beats_a_variable_beats_a_file_beats_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ("cassieq", "default") == config()["keyspace"]

    write(Path("cassieq.toml"), '[connection]\nkeyspace = "of_file"')
    assert ("of_file", "cassieq.toml") == config()["keyspace"]

    monkeypatch.setenv("CASSIEQ_KEYSPACE", "of_variable")
    assert ("of_variable", "CASSIEQ_KEYSPACE") == config()["keyspace"]

    assert ("of_flag", "flag") == config("--keyspace", "of_flag")["keyspace"]


def test_the_named_file_beats_the_one_here_beats_the_users(tmp_path: Path) -> None:
    users = write(tmp_path / "config" / "cassieq.toml", '[connection]\nkeyspace = "users"')
    assert ("users", str(users)) == config()["keyspace"]

    write(Path("cassieq.toml"), '[connection]\nkeyspace = "here"')
    assert ("here", "cassieq.toml") == config()["keyspace"]

    named = write(tmp_path / "named.toml", '[connection]\ndatacenter = "dc7"')
    found = config("--config", str(named))
    assert ("dc7", str(named)) == found["datacenter"]
    assert ("cassieq", "default") == found["keyspace"]


def test_every_option_of_the_connection_has_a_flag_but_secrets() -> None:
    command = typer.main.get_command(app)
    for name in ("put", "get", "ack", "peek", "watch", "bootstrap"):
        flags = {flag for param in command.commands[name].params for flag in param.opts}  # type: ignore[attr-defined]  # a group has commands
        for option in options_of("connection"):
            assert (not option.is_secret) is (flag_of(option) in flags), option.name


def test_every_setting_of_a_queue_has_a_flag_and_what_cannot_change_none_in_alter() -> None:
    queue = typer.main.get_command(app).commands["queue"]  # type: ignore[attr-defined]  # a group has commands
    create, alter = (
        {flag for param in queue.commands[name].params for flag in param.opts}
        for name in ("create", "alter")
    )
    flags = {flag_of(option) for option in options_of("queue")}

    assert 15 == len(flags)
    assert flags <= create
    assert (
        flags - {"--bucket-size", "--priorities", "--shards", "--schedule-period"} == flags & alter
    )


def test_a_secret_is_not_shown_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("cassieq.toml"), '[connection]\npassword = "abracadabra"')
    assert ("***", "cassieq.toml") == config()["password"]
    monkeypatch.setenv("CASSIEQ_PASSWORD", "abracadabra")
    assert ("***", "CASSIEQ_PASSWORD") == config()["password"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('keyspace = "a"', "[cassieq:option_unknown] configuration file f.toml has 'keyspace'"),
        ("[conection]", "[cassieq:option_unknown] configuration file f.toml has 'conection'"),
        ('[connection]\nkeyspce = "a"', "Did you mean 'keyspace'?"),
        (
            '[queue]\nkeyspace = "a"',
            "'keyspace' is not an option of [queue] of f.toml. 'keyspace' belongs",
        ),
        ("[connection]\nkeyspace = 7", "'keyspace' in [connection] of f.toml is 7, allowed: 1 to"),
        ("[queue]\nLinger = 1", "of [queue] of f.toml. Did you mean 'linger'?\n"),
        ('[queue]\nlinger = "soon"', "'linger' in [queue] of f.toml is 'soon', allowed: a time"),
        ('[queue]\nlinger = "2h"', "'linger' in [queue] of f.toml is '2h', allowed: a time from"),
        ("[connection", "[cassieq:option_invalid] configuration file f.toml is not TOML"),
        (
            f"a={'[' * 5_000}",
            "[cassieq:option_invalid] configuration file f.toml is not TOML",
        ),
        (None, "configuration file f.toml cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_its_name(text: str | None, expected: str) -> None:
    if text is not None:
        write(Path("f.toml"), text)

    code, out, err = run("config", "--config", "f.toml")

    assert (2, "") == (code, out)
    assert expected in err


def test_a_secret_that_cannot_be_is_refused_without_showing_it() -> None:
    write(Path("f.toml"), "[connection]\npassword = 123456")

    code, _, err = run("config", "--config", "f.toml")

    assert 2 == code
    assert "'password' in [connection] of f.toml is ***" in err
    assert "123456" not in err


def test_the_example_file_is_taken_as_it_is_and_with_every_line_in_force(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "cassieq.toml").read_text(encoding="utf-8")
    full = "\n".join(
        line[2:] if line.startswith("# ") and " = " in line else line for line in text.splitlines()
    )

    as_it_is = find_file(write(tmp_path / "as_it_is.toml", text))
    in_force = find_file(write(tmp_path / "full.toml", full))

    assert "cassieq" == as_it_is.section("connection").get("keyspace")
    assert {option.name for option in options_of("connection")} == in_force.sections[
        "connection"
    ].keys()
    assert {option.name for option in options_of("queue")} == in_force.sections["queue"].keys()


def test_times_of_a_queue_are_numbers_or_text_in_the_file(tmp_path: Path) -> None:
    file = find_file(
        write(tmp_path / "f.toml", '[queue]\nvisibility_timeout = "5m"\nlinger = 0.5\n')
    )
    assert {"visibility_timeout": 300.0, "linger": 0.5} == file.sections["queue"]


def test_without_contact_points_the_four_ways_to_say_them_are_named() -> None:
    code, out, err = run("queue", "list")

    assert (2, "") == (code, out)
    for way in ("--contact-points", "CASSIEQ_CONTACT_POINTS", "cassieq.toml", "cassandra start"):
        assert way in err


@pytest.mark.parametrize(
    ("given", "expected"),
    [("30", 30.0), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300.0), ("7d", 604_800.0)],
)
def test_a_flag_takes_times_as_people_write_them(given: str, expected: float) -> None:
    assert expected == Seconds().read("delay", given)


@pytest.mark.parametrize("given", ["", "soon", "-1", "5 weeks", "nan"])
def test_a_flag_that_is_no_time_is_refused_by_its_name(given: str) -> None:
    with pytest.raises(OptionInvalid, match="--delay is"):
        Seconds().read("delay", given)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["put", "q"], "give the messages in one way"),
        (["put", "q", "a", "--file", "x"], "give the messages in one way"),
        (["put", "q", "a", "-"], "must stand alone"),
        (["put", "q", "a", "b", "--message-id", "x"], "names one message"),
        (["put", "q", "-", "--message-id", "x"], "names one message"),
        (["put", "q", "a", "--header", "novalue"], "--header is 'novalue', allowed: NAME=VALUE"),
        (["put", "q", "a", "--delay", "5x"], "--delay is '5x'"),
        (["put", "q", "--file", "missing"], "--file missing cannot be read: No such file"),
        (
            ["queue", "create", "q", "--linger", "2m"],
            "--linger is '2m', allowed: a time from 0 s to",
        ),
        (
            ["queue", "create", "q", "--max-deliveries", "0"],
            "--max-deliveries is 0, allowed: a whole",
        ),
        (["watch", "--interval", "1ms"], "--interval is '1ms', allowed: 0.1 s or more"),
        *((["load", "put", "q", "--rate", rate], "'--rate'") for rate in ("nan", "inf", "1" * 400)),
        *((["load", "get", "q", "--rate", rate], "'--rate'") for rate in ("nan", "inf", "0", "x")),
        *(
            (["cassandra", verb, "--data-dir", __file__], "is a file")
            for verb in ("status", "stop")
        ),
        (["cassandra", "start", "--data-dir", f"{__file__}/x"], "is a file"),
        (["cassandra", "status", "--data-dir", "x" * 5_000], "File name too long"),
        (["bootstrap", "--replication", "dc1"], "--replication is 'dc1', allowed: DATACENTER=N"),
        (["queue", "alter", "q"], "nothing to change in 'q'"),
        (["queue", "alter", "q", "--reset", "bucket-size"], "--reset is 'bucket-size', allowed"),
        (["queue", "alter", "q", "--linger", "1", "--reset", "linger"], "both set and reset"),
        (["queue", "delete", "q"], "no terminal to ask on. Confirm it with --yes"),
        (["queue", "purge", "q"], "no terminal to ask on. Confirm it with --yes"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_right(
    arguments: list[str], expected: str
) -> None:
    code, out, err = run(*arguments)

    assert (2, "") == (code, out)
    assert expected in err


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CASSIEQ_CONTACT_POINT", "CASSIEQ_CONTACT_POINTS"),
        ("CASSIEQ_CONTACTPOINTS", "CASSIEQ_CONTACT_POINTS"),
        ("cassieq_keyspace", "CASSIEQ_KEYSPACE"),
        ("CASSIEQ_PASWORD", "CASSIEQ_PASSWORD"),
        ("CASSIEQ_MASTER_KEY_FILES", "CASSIEQ_MASTER_KEY_FILE"),
    ],
)
def test_a_misspelt_variable_is_noticed_in_one_line_without_its_value(
    wrong: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wrong, "hidden")
    code, out, err = run("config", "--json")

    assert 0 == code
    assert f"Warning: variable {wrong} is not read. Did you mean {right}?\n" == err
    assert "hidden" not in out + err


@pytest.mark.parametrize("other", [*OTHERS, "CASSIEQ_BENCHMARK_HOME", "XCASSIEQ_KEYSPACE"])
def test_a_variable_that_is_like_none_of_ours_is_its_owners(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(other, "1")
    assert "" == run("config", "--json")[2]


def test_a_program_without_contact_points_is_told_of_the_misspelt_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CASSIEQ_CONTACT_POINT", "db:9042")
    with pytest.raises(OptionInvalid) as caught:
        parse_connection({})
    assert str(caught.value).endswith(
        "Variable CASSIEQ_CONTACT_POINT is not read: did you mean CASSIEQ_CONTACT_POINTS?"
    )


def test_a_file_that_begins_with_a_byte_order_mark_is_read() -> None:
    Path("cassieq.toml").write_bytes(b"\xef\xbb\xbf[connection]\nkeyspace = 'of_windows'\n")

    assert ("of_windows", "cassieq.toml") == config()["keyspace"]


def test_a_signed_token_is_printed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSIEQ_ACCESS_KEY_ID", f"CQAK{'A' * 16}")
    monkeypatch.setenv("CASSIEQ_SECRET_ACCESS_KEY", "s" * 40)

    code, out, err = run("account", "sign", "--queue", "orders", "--rights", "read")

    assert (0, "") == (code, err)
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+\n", out)
