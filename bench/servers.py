"""Servers that speak the protocol of Amazon SQS, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

from bench.releases import ROOT, environment
from cassieq_spark.testing import wait_until
from tests.fixtures.elasticmq import elasticmq_server

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTENS = re.compile(r"Listening on (?P<url>\S+)\. ")

SERVE = "from cassieq_spark.cli import main; main()"

MOTO = """
from threading import Event
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
Event().wait()
"""


@contextmanager
def our_server(contact_points: str, keyspace: str, tree: Path = ROOT) -> Iterator[tuple[str, int]]:
    """``cassieq serve`` of the release in this tree: its URL and its process."""
    command = [sys.executable, "-P", "-c", SERVE, "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--contact-points", contact_points, "--keyspace", keyspace],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(tree),
    )
    try:
        url = _url_of(process)
        wait_until(lambda: _is_ready(url), deadline_s=60, describe="the gateway is ready")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def _url_of(process: subprocess.Popen[str]) -> str:
    said = []
    for line in process.stdout or ():
        if found := LISTENS.search(line):
            # What it says later would fill the pipe.
            threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
            return found["url"]
        said.append(line)
    raise SystemExit(f"the gateway did not start: {''.join(said)}")


def _is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=10):  # noqa: S310 - it has just said this address
            return True
    except HTTPError:
        return False


@contextmanager
def moto_server() -> Iterator[tuple[str, int]]:
    """Moto's server: its URL and its process."""
    command = [sys.executable, "-c", MOTO]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        port = int(process.stdout.readline()) if process.stdout else 0
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def elasticmq() -> Iterator[tuple[str, int]]:
    """ElasticMQ: its URL and its process."""
    with (
        TemporaryDirectory(prefix="cassieq-elasticmq-") as directory,
        elasticmq_server(Path(directory)) as started,
    ):
        yield started
