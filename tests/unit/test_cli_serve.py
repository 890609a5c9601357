"""``cassieq serve`` that cannot begin: one named error, and the exit code of a wrong option."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.fixtures.commands import CommandLine, end

NOWHERE = CommandLine("127.0.0.1:1")
"""No node is asked for anything before the gateway listens."""


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", ["serve", "exporter"])
def test_each_line_has_its_time_from_the_first_one_on(command: str, form: str) -> None:
    process = NOWHERE.start(command, "--port", "0", "--log-format", form)
    assert process.stderr is not None
    lines = [process.stderr.readline().decode() for _ in range(2)]  # where it listens; Cassandra
    process.terminate()
    lines += end(process).err.splitlines()
    for line in lines:
        moment = json.loads(line)["time"] if form == "json" else line.partition(" ")[0]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", moment), lines


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = NOWHERE("serve", "--port", str(port))

    assert 2 == ended.code
    assert f"nothing can listen for requests on 127.0.0.1 port {port}" in ended.err


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        (
            "serve",
            ["--host", "192.0.2.1", "--insecure"],
            "nothing can listen for requests on 192.0",
        ),
        ("exporter", ["--host", "192.0.2.1"], "nothing can listen for metrics on 192.0.2.1 port 0"),
        ("exporter", ["--scan-interval", "10ms"], "--scan-interval is '10ms'"),
    ],
)
def test_what_a_service_cannot_use_is_named_before_it_connects(
    command: str, flags: list[str], said: str
) -> None:
    ended = NOWHERE(command, "--port", "0", *flags)

    assert 2 == ended.code
    assert said in ended.err


def test_a_tls_file_of_another_kind_is_named(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("no certificate")
    key.write_text("no key")

    ended = NOWHERE("serve", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key))

    assert 2 == ended.code
    assert f"TLS files {cert} and {key} cannot be used" in ended.err
