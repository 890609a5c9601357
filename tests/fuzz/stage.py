"""What is attacked: gateways on one node, accounts with secrets; and what is always watched."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import boto3
import psutil
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.accounts.keys import MasterKey, write_new
from cassieq_spark.entropy import new_uuid
from cassieq_spark.server.sqs.call import number_of
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account
from tests.fixtures.certificates import Authority
from tests.fuzz.book import Book, hidden_forms
from tests.fuzz.grammar import QUEUES
from tests.fuzz.probed import FACTOR

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1_048_576
REQUEST_S, KEEP_ALIVE_S = 3.0, 2.0
BODY: Final = 2 * MIB
MEMORY: Final = 32 * MIB
MOST_GROWN: Final = 8 * MEMORY
"""How much the process may grow: an operation holds a body as bytes, as text and as values."""
MOST_THREADS: Final = 128
"""Of a gateway: the engine's, the driver's, and those that take care of what is large."""
CALLS: Final = 8
LIMITS: Final = (
    "--no-repair", "--max-memory", str(MEMORY), "--max-body", str(BODY), "--calls", str(CALLS),
    "--request-timeout", str(REQUEST_S), "--keep-alive", str(KEEP_ALIVE_S),
)  # fmt: skip
ACCOUNTS: Final = 3
UNANSWERED_S: Final = 20.0
RESTARTS: Final = 5
PLANTED: Final = tuple(dict.fromkeys(QUEUES))
PLANTED_EVERY_S: Final = 5.0
"""Requests that make and delete queues are drawn as often as all others."""


@dataclass
class Running:
    """One gateway process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    probe: Path
    url: str = ""
    ca: Path | None = None
    rss_before: int = 0

    @property
    def address(self) -> tuple[str, int]:
        found = urlsplit(self.url)
        return str(found.hostname), int(found.port or 0)

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.ca is None else ssl.create_default_context(cafile=str(self.ca))

    def connect(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        if (tls := self.tls) is not None:
            return http.client.HTTPSConnection(*self.address, timeout=timeout, context=tls)
        return http.client.HTTPConnection(*self.address, timeout=timeout)

    def is_ready(self) -> bool:
        connection = self.connect()
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def ports(self) -> set[int]:
        """The clients' ports of the connections that it has."""
        own = self.address[1]
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return {one.raddr.port for one in found if one.raddr and one.laddr.port == own}

    def sqs(self, key: tuple[str, str] = ("any", "any")) -> Any:
        return boto3.client(
            "sqs", endpoint_url=self.url, region_name="eu-west-1", aws_access_key_id=key[0],
            aws_secret_access_key=key[1], verify=str(self.ca) if self.ca else None,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=60),
        )  # fmt: skip


@dataclass
class Stage:
    """Made once for a run; a context manager.

    Attributes:
        over: Set when the run ends.
        secrets: What each account alone may see.
    """

    contact_points: str
    keyspace: str
    book: Book
    seconds: float
    over: threading.Event = field(default_factory=threading.Event)
    accounts: list[Account] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    gateways: dict[str, Running] = field(default_factory=dict)
    _restarts: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.client = stack.enter_context(
                cassieq.connect(self.contact_points, keyspace=self.keyspace)
            )
            self.client.bootstrap()
            directory = self.book.directory
            self._master = directory / "master.key"
            write_new(self._master)
            authority = Authority("fuzz")
            authority.write(directory / "ca.pem")
            self._tls = authority.sign("gateway", address="127.0.0.1").write(directory, "gateway")
            admin, key = AccountAdmin(self.client.store), MasterKey.load(self._master)
            for at in range(ACCOUNTS):
                made = Account(
                    admin, key, portal.run(admin.create(f"fuzz-{at}-{new_uuid().hex[:8]}", key))
                )
                self.accounts.append(made)
                self.secrets.append(f"only-for-{made.name}-{new_uuid().hex}")
                stack.callback(self._delete, admin, made.name)
            stack.callback(self._kill)
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._start, ("accounts", "open")))
                list(pool.map(self._plant, range(ACCOUNTS)))
            self.deadline = time.monotonic() + self.seconds
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self._stack.close()

    @property
    def is_over(self) -> bool:
        return self.over.is_set() or time.monotonic() > self.deadline

    @property
    def numbers(self) -> list[str]:
        return [number_of(one.name) for one in self.accounts]

    def hidden_from(self, account: int | None) -> list[bytes]:
        """What an account must not see; None: nobody is asked."""
        others = [at for at in range(len(self.accounts)) if at != account]
        found = [one for at in others for one in hidden_forms(self.secrets[at])]
        return found + [one.key[1].encode() for one in self.accounts]

    def _plant(self, at: int) -> None:
        secret = self.secrets[at]
        sqs = self.gateways["accounts"].sqs(self.accounts[at].key)
        for name in ("vault", *PLANTED, "wire", "ledger"):
            made = {"QueueName": name, "Attributes": {"VisibilityTimeout": "20"}}
            url = sqs.create_queue(**made, tags={"owner": secret})["QueueUrl"]
            if name == "ledger":
                continue  # its messages are counted
            typed = {"secret": {"DataType": "String", "StringValue": secret}}
            for _ in range(3):
                sqs.send_message(QueueUrl=url, MessageBody=secret, MessageAttributes=typed)
        sqs.close()

    def plant_again(self) -> None:
        """Make the queues that requests are about anew, as often as requests delete them."""
        while not self.over.wait(PLANTED_EVERY_S):
            with ExitStack() as stack:
                gateways = self.gateways
                sides = [gateways["accounts"].sqs(one.key) for one in self.accounts]
                for sqs in (*sides, gateways["open"].sqs()):
                    stack.callback(sqs.close)
                    for name in PLANTED:
                        # It is there, with settings that a request has changed; or all are busy.
                        with suppress(ClientError, BotoCoreError):
                            url = sqs.create_queue(QueueName=name)["QueueUrl"]
                            sqs.send_message(QueueUrl=url, MessageBody="planted")
                            self.book.count("planted again", name)

    # --- processes -----------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        directory = self.book.directory
        stem = f"gateway-{name}-{self._restarts}"
        arguments = ["--contact-points", self.contact_points, "--keyspace", self.keyspace]
        if name == "accounts":
            arguments += ["--auth", "--master-key-file", str(self._master)]
        else:
            arguments += ["--tls-cert", self._tls[0], "--tls-key", self._tls[1]]
        log, probe = directory / f"{stem}.log", directory / f"{stem}.json"
        command = [sys.executable, "-m", "tests.fuzz.probed", str(probe), "serve", "--port", "0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments, *LIMITS],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        found = wait_until(
            lambda: (
                process.poll() is not None
                or re.search(r"Listening\s+on\s+(\S+)\.\s", log.read_text(errors="replace"))
            ),
            deadline_s=120,
        )
        if not isinstance(found, re.Match):
            raise TypeError(f"the gateway did not start: {log.read_text(errors='replace')[-2000:]}")
        ca = None if name == "accounts" else directory / "ca.pem"
        running = Running(name, process, log, probe, found[1], ca)
        wait_until(running.is_ready, deadline_s=120)  # it listens before it has reached Cassandra
        self.gateways[name] = running

    @staticmethod
    def _delete(admin: AccountAdmin, name: str) -> None:
        portal.run(admin.delete(name, with_queues=True))

    def _kill(self) -> None:
        for one in self.gateways.values():
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait(30)

    def terminate(self) -> None:
        """End the gateways as an operator does."""
        for one in self.gateways.values():
            if one.process.poll() is not None:
                continue
            one.process.send_signal(signal.SIGTERM)
            try:
                code = one.process.wait(30)
            except subprocess.TimeoutExpired:
                self.book.find("end", f"{one.name} does not end", gateway=one.name)
                continue
            if code:
                self.book.find("end", f"{one.name} ended with {code}", gateway=one.name)
            self.book.read_log(one.log)

    # --- what is watched -----------------------------------------------------------------------

    def watch(self) -> None:
        """Look once a second until the run is over; write the summary each minute."""
        began = last = time.monotonic()
        while not self.over.wait(1.0):
            for one in list(self.gateways.values()):
                try:
                    self._look(one)
                    if time.monotonic() - last > 60:
                        last = time.monotonic()
                        self.summarise(minutes=round((last - began) / 60, 1))
                except Exception as error:  # noqa: BLE001 - noted, and looked at again
                    self.book.find("fuzzer", f"watch: {type(error).__name__}", error=error)

    def _look(self, one: Running) -> None:
        if one.process.poll() is not None:
            tail = one.log.read_text(errors="replace")[-3000:]
            self.book.find("died", f"{one.name}: {one.process.returncode}", log=tail)
            self._restarts += 1
            if self._restarts > RESTARTS:
                self.over.set()
                return
            self._start(one.name)
            return
        process = psutil.Process(one.process.pid)
        rss = process.memory_info().rss
        one.rss_before = one.rss_before or rss
        grown = rss - one.rss_before
        self.book.most(f"{one.name}: grown by MiB", grown / MIB)
        self.book.figures[f"{one.name}: RSS in MiB now"] = round(rss / MIB)
        if grown > MOST_GROWN:
            about = f"{one.name} has grown by more than {MOST_GROWN // MIB} MiB"
            self.book.find("memory", about, rss=rss, before=one.rss_before)
        self.book.most(f"{one.name}: threads", process.num_threads())
        if process.num_threads() > MOST_THREADS:
            self.book.find("threads", f"{one.name}: more than {MOST_THREADS}")
        began = time.monotonic()
        try:
            connection = one.connect(UNANSWERED_S)
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            self.book.find(
                "unanswered", f"{one.name}: {type(error).__name__}", load=os.getloadavg()
            )
            return
        took_ms = 1e3 * (time.monotonic() - began)
        self.book.most(f"{one.name}: /healthz took ms", took_ms)
        edge = next((edge for edge in (10, 50, 100, 500, 1_000, 5_000) if took_ms <= edge), 99_999)
        self.book.count(one.name, "/healthz within", edge, "ms")
        if status != 200:
            self.book.find("unanswered", f"{one.name}: /healthz is {status}")

    def warmed_up(self) -> None:
        """Wait until the probes have written down what the first requests took."""
        now = time.time_ns()  # noqa: TID251 - that of the files
        for one in self.gateways.values():
            wait_until(lambda one=one: one.probe.exists() and one.probe.stat().st_mtime_ns > now)
        self.summarise(is_warming_up=True)

    def summarise(self, *, is_warming_up: bool = False, **more: Any) -> None:
        """Read what the gateways have written, and write the summary.

        Args:
            is_warming_up: Stalls so far are no findings: a first request imports modules.
        """
        for one in self.gateways.values():
            self.book.read_log(one.log)
            if not one.probe.exists():
                continue
            loop = json.loads(one.probe.read_text())
            self.book.figures[f"{one.name}: loop"] = loop
            for stall in loop["worst"]:
                where = (
                    stall.get("target")
                    or stall.get("path")
                    or stall["callback"].partition(": ")[2][:60]
                )
                if is_warming_up:
                    self.book.known("stall", f"{one.name}: {where}", stall)
                elif stall["times"] > FACTOR:
                    self.book.find("stall", f"{one.name}: {where}", **stall)
        self.book.write(load=os.getloadavg(), **more)


def source(at: int) -> socket.socket:
    """A socket with an address of its own: loopback, but for which shares hold."""
    made = socket.socket()
    made.bind((f"127.0.0.{2 + at % 4}", 0))
    return made
