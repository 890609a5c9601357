"""Prometheus itself watches a running system that is broken in one way after the other.

The rules are those of `alerts.yml`, sixty times as fast: a minute of theirs is a second here.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import own_keyspace
from tests.fixtures.commands import CommandLine, end
from tests.fixtures.transports import driver_of
from tests.server.conftest import Gateway, start_gateway
from tests.server.test_watching_files import ALERTS

BESIDE = Path(sys.executable).with_name("prometheus")
"""Where `make promtool` puts it."""
PROMETHEUS = shutil.which("prometheus") or shutil.which(str(BESIDE))

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None,
    reason="prometheus is not installed: no alert meets a running system. Run: make promtool",
)
pytestmark = needs_prometheus

SECONDS = {"3600": "20", "900": "25", "172800": "40", "300": "30"}
"""Thresholds in seconds: a test does not wait for an hour."""


def quick(rules: str) -> str:
    """The rules, sixty times as fast."""
    faster = re.sub(r"\b(\d+)h\b", lambda one: f"{60 * int(one[1])}s", rules)
    faster = re.sub(r"\b(\d+)m\b", r"\1s", faster)
    pattern = rf"(?<=[<>] )({'|'.join(SECONDS)})\b"
    return re.sub(pattern, lambda one: SECONDS[one[1]], faster)


class Files(SimpleHTTPRequestHandler):
    """Serves what --metrics-file wrote, as node_exporter's textfile collector does."""

    extensions_map: ClassVar = {".prom": "text/plain"}

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Watched:
    """A keyspace, its gateways, the files of its repair, and the Prometheus that scrapes them."""

    def __init__(self, points: str, keyspace: str, folder: Path, files: int) -> None:
        self.cli = CommandLine(points, keyspace=keyspace)
        self.folder = folder
        self.gateways: list[Gateway] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (folder / "prometheus.log").open("wb")
        self._files = files

    def start(self) -> None:
        folder = self.folder
        self._add_gateway()
        # The first one counts the queues: it has begun before the second one is there.
        counted = b"cassieq_scan_age_seconds "
        first = self.gateways[0]
        wait_until(lambda: counted in first.ask("GET", "/metrics")[2], deadline_s=60)
        self._add_gateway()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._at = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "alerts.yml").write_text(quick(ALERTS.read_text("utf-8")), "utf-8")
        gateways = [urlsplit(one.url).netloc for one in self.gateways]
        jobs = [{"job_name": "cassieq", "static_configs": [{"targets": gateways}]}] + [
            {
                "job_name": work,
                "metrics_path": f"/{work}.prom",
                "static_configs": [{"targets": [f"127.0.0.1:{self._files}"]}],
            }
            for work in ("repair", "verify")
        ]
        config = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(folder / "alerts.yml")],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")
        assert PROMETHEUS is not None
        self._process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._at}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def _add_gateway(self) -> None:
        started = start_gateway(self.cli, "--no-repair", "--scan-interval", "1s")
        self.gateways.append(started)
        started.wait_until_ready()

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._at}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def alerts(self, *names: str) -> list[dict[str, Any]]:
        """What fires; without names, all of it."""
        firing = [one for one in self.ask("alerts")["alerts"] if one["state"] == "firing"]
        return [one for one in firing if not names or one["labels"]["alertname"] in names]

    def firing(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.alerts()}

    def is_up(self) -> bool:
        """Whether all targets were scraped."""
        try:
            found = self.ask("targets")["activeTargets"]
        except OSError:
            return False
        return len(found) == 4 and all(one["health"] == "up" for one in found)

    def repair(self, *more: str) -> int:
        """A pass that writes its metrics file."""
        work = "verify" if "--verify" in more else "repair"
        return self.cli("repair", *more, "--metrics-file", str(self.folder / f"{work}.prom")).code

    def wait_until_firing(self, *names: str) -> None:
        wait_until(
            lambda: set(names) <= self.firing(),
            deadline_s=240,
            describe=lambda: f"{set(names) - self.firing()} do not fire",
        )

    def wait_until_over(self, *names: str, passes: bool = False) -> None:
        """Wait until none of these fires any more.

        Args:
            passes: Whether somebody repairs and verifies meanwhile.
        """

        def is_over() -> bool:
            if passes:
                self.repair()
                self.repair("--verify")
            return not set(names) & self.firing()

        wait_until(is_over, deadline_s=240, describe=lambda: f"{self.firing()} fire")

    def end(self) -> str:
        """End everything; return what the gateways have logged."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None
        self._log.close()
        gateways, self.gateways = self.gateways, []
        for one in gateways:
            if one.process.poll() is None:
                one.process.kill()
        return "".join(end(one.process).err for one in gateways)


@contextmanager
def watching(cassandra: EmbeddedCassandra, tmp_path: Path) -> Iterator[Watched]:
    """All is well, and no alert fires."""
    keyspace = own_keyspace(cassandra, f"alerts_{tmp_path.name[-20:].replace('-', '_')}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path)))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    made = Watched(cassandra.contact_points, keyspace, tmp_path, server.server_address[1])
    try:
        made.start()
        assert (0, 0) == (made.repair(), made.repair("--verify"))
        wait_until(made.is_up, deadline_s=60)
        assert set() == made.firing()
        yield made
    finally:
        made.end()
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.fixture
def watched(cassandra: EmbeddedCassandra, tmp_path: Path) -> Iterator[Watched]:
    """On the shared node."""
    with watching(cassandra, tmp_path) as made:
        yield made


@pytest.fixture
def own(watched: Watched) -> Iterator[cassieq.Client]:
    variables = watched.cli.variables
    points, keyspace = variables["CASSIEQ_CONTACT_POINTS"], variables["CASSIEQ_KEYSPACE"]
    with cassieq.connect(points, keyspace=keyspace) as client:
        yield client


@pytest.mark.sample
def test_a_gateway_that_is_killed_is_told(watched: Watched) -> None:
    watched.gateways[1].kill()
    watched.wait_until_firing("CassieqGatewayDown")


@pytest.mark.timeout(900)
def test_a_consumer_that_hangs_and_a_repair_that_does_not_run_are_told_until_they_end(
    watched: Watched, own: cassieq.Client
) -> None:
    # A consumer hangs, nobody repairs, and many buckets are finished.
    hangs = own.create_queue("hangs", linger=0)
    hangs.put(b"m")
    (held,) = hangs.get(visibility_timeout=3_600)
    busy = own.create_queue("busy", linger=0, bucket_size=1)
    busy.put_many([b"m"] * 110)
    while messages := busy.get(100):
        busy.ack(messages)
    not_run = "CassieqRepairNotRun", "CassieqVerifyNotRun"
    watched.wait_until_firing("CassieqConsumerHangs", "CassieqBucketsPileUp", *not_run)

    # It is ended, and repair runs: all is well again.
    hangs.ack(held)
    watched.wait_until_over("CassieqConsumerHangs", "CassieqBucketsPileUp", *not_run, passes=True)


@pytest.mark.timeout(900)
def test_what_repair_cannot_do_and_verify_finds_is_told_until_the_row_is_restored(
    watched: Watched, own: cassieq.Client
) -> None:
    queue = own.create_queue("spoilt", linger=0)
    queue.put_many([b"m"] * 3)
    queue.get(1)  # so there is a row of the bucket
    lane = queue._lane
    cql = driver_of(own._session).session.execute
    table = f"{own.keyspace}.bucket"
    where = (lane.lane_id, 0)
    was = cql(f"SELECT claims FROM {table} WHERE lane = %s AND bucket = %s", where).one()  # noqa: S608
    write = f"UPDATE {table} SET claims = %s WHERE lane = %s AND bucket = %s IF EXISTS"  # noqa: S608
    cql(write, (b"\xc1", *where))
    expected = "CassieqRepairFails", "CassieqVerifyFound"

    def are_told() -> bool:
        assert (1, 1) == (watched.repair(), watched.repair("--verify"))
        return set(expected) <= watched.firing()

    wait_until(are_told, deadline_s=240, describe=lambda: f"only {watched.firing()} fire")
    of_repair = watched.alerts("CassieqRepairFails")
    assert "repair" in {one["labels"]["work"] for one in of_repair}

    cql(write, (bytes(was.claims), *where))
    watched.wait_until_over(*expected, passes=True)


@pytest.mark.timeout(900)
def test_queues_that_nobody_counts_are_told_until_cassandra_answers_again(
    own_cassandra: EmbeddedCassandra, tmp_path: Path
) -> None:
    with watching(own_cassandra, tmp_path) as watched:
        own_cassandra.pause()
        watched.wait_until_firing("CassieqQueuesNotCounted")
        assert "CassieqGatewayDown" not in watched.firing()

        own_cassandra.resume()
        watched.wait_until_over("CassieqQueuesNotCounted")
        assert "scan_failed" in watched.end()
