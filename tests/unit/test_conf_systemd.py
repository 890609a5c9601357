"""The units of conf/systemd: systemd takes them, and finds them well shut."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cassieq_spark.cli.app import app
from tests.unit.test_conf_examples import ROOT, check_all_three, job_arguments

UNITS = ROOT / "conf" / "systemd"
SERVICES = sorted(path.stem for path in UNITS.glob("*.service"))
COMMON = UNITS / "cassieq-.service.d" / "hardening.conf"
SERVERS = ("cassieq-exporter", "cassieq-gateway")
PASSES = ("cassieq-repair", "cassieq-repair-full", "cassieq-verify")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd here"
)


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",), strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # as its docs have it
    found.read_string((UNITS / name).read_text("utf-8"))
    return found


def command_of(service: str) -> list[str]:
    return shlex.split(unit(f"{service}.service")["Service"]["ExecStart"])


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """On a copy whose programs are there: what is installed here is not what is tested."""
    shutil.copytree(UNITS, folder, dirs_exist_ok=True)
    for path in folder.glob("*.service"):
        text = re.sub(r"/opt/cassieq/venv/bin/[a-z-]+", sys.executable, path.read_text("utf-8"))
        path.write_text(text, encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )


def test_there_is_a_unit_for_each_program_that_stays_and_for_each_pass() -> None:
    assert sorted([*SERVERS, *PASSES]) == SERVICES
    for name in PASSES:
        assert "oneshot" == unit(f"{name}.service")["Service"]["Type"]
        timer = unit(f"{name}.timer")
        assert "timers.target" == timer["Install"]["WantedBy"]
    assert {"OnBootSec", "OnUnitInactiveSec"} <= unit("cassieq-repair.timer")["Timer"].keys()
    for name in SERVERS:
        service = unit(f"{name}.service")
        assert ("exec", "always") == (service["Service"]["Type"], service["Service"]["Restart"])
        assert "multi-user.target" == service["Install"]["WantedBy"]


def test_the_passes_are_those_of_the_job() -> None:
    check_all_three([job_arguments(command_of(name)) for name in PASSES])


@pytest.mark.parametrize("name", SERVERS)
def test_the_commands_are_those_of_the_shell(name: str) -> None:
    program, verb, *arguments = command_of(name)
    assert "/opt/cassieq/venv/bin/cassieq" == program
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]  # a group
    given = command.make_context(verb, arguments).params
    # Nothing but this machine reaches them, and the gateway asks for a key.
    assert "127.0.0.1" == given["host"]
    assert given.get("auth", True)


def test_one_file_shuts_every_unit() -> None:
    """The name of its folder is systemd's way to say: all units whose names begin so."""
    text = COMMON.read_text("utf-8")
    for name in SERVICES:
        assert name.startswith(COMMON.parent.name.removesuffix(".service.d"))
        assert "User" not in unit(f"{name}.service")["Service"]
    assert "User=cassieq" in text
    assert "ProtectSystem=strict" in text


@needs_systemd
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    names = [path.name for path in UNITS.iterdir() if path.is_file()]
    done = analyze(tmp_path, "verify", "--man=no", *(f"./{name}" for name in names))
    said = [line for line in done.stderr.splitlines() if "cassieq" in line]
    assert (0, []) == (done.returncode, said), done.stderr


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_systemd_finds_little_that_a_unit_may_do(name: str, tmp_path: Path) -> None:
    """At most 3.0 of 10, as systemd counts it; a unit that says nothing has 9.6."""
    done = analyze(
        tmp_path, "security", "--offline=true", "--threshold=30", "--no-pager", f"./{name}.service"
    )
    assert 0 == done.returncode, done.stdout + done.stderr
