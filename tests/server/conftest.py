"""A gateway as a user runs it: a process of its own, on the shared node."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.config import Config

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.accounts.keys import MasterKey, write_new
from cassieq_spark.entropy import new_uuid
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.accounts import Account
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine, end
from tests.fixtures.ui import Visitor

LISTENS = re.compile(r"Listening on (?P<url>\S+)\. ")


@dataclass
class Gateway:
    """A running ``cassieq serve``."""

    process: subprocess.Popen[bytes]
    url: str
    said: list[str] = field(default_factory=list)

    def status(self, path: str) -> int:
        """The status of a GET."""
        return self.ask("GET", path)[0]

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port or 0, timeout=30
        )
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            found = {key.lower(): value for key, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def sqs(self, **config: Any) -> Any:
        return sqs_at(self.url, **config)

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.status("/readyz") == 200, deadline_s=60)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def sqs_at(
    url: str, *, key: tuple[str, str] = ("key", "secret"), ca: str | None = None, **config: Any
) -> Any:
    """A client of boto3, as a user makes it; nothing is tried again behind a test's back."""
    settings: dict[str, Any] = {"retries": {"total_max_attempts": 1}, **config}
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="eu-central-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        verify=ca,
        config=Config(**settings),
    )


def start_gateway(command: CommandLine, *arguments: str) -> Gateway:
    process = command.start("serve", "--port", "0", *arguments)
    assert process.stderr is not None
    said = []
    while line := process.stderr.readline().decode():
        said.append(line)
        if found := LISTENS.search(line):
            return Gateway(process, found["url"], said)
    pytest.fail(f"the gateway ended with {process.wait(30)}: {''.join(said)}")


@contextmanager
def running(cassandra: EmbeddedCassandra, *arguments: str) -> Iterator[Gateway]:
    """A gateway on the shared node, which is ready, and ended at the end."""
    started = start_gateway(CommandLine(cassandra.contact_points), "--no-repair", *arguments)
    started.wait_until_ready()
    yield started
    if started.process.poll() is None:
        started.terminate()
    _close(started)


@pytest.fixture(scope="session")
def gateway(cassandra: EmbeddedCassandra, client: cassieq.Client) -> Iterator[Gateway]:  # noqa: ARG001 - it has made the tables
    """One gateway for all tests that do not end it."""
    with running(cassandra) as one:
        yield one


@pytest.fixture
def start(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,  # noqa: ARG001 - as above
) -> Iterator[Callable[..., Gateway]]:
    """``start("--flag", ...)``: a gateway of the test's own, on the shared node or on another."""
    started: list[Gateway] = []

    def start_one(*arguments: str, contact_points: str | None = None) -> Gateway:
        command = CommandLine(contact_points or cassandra.contact_points, keyspace=KEYSPACE)
        started.append(start_gateway(command, *arguments))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.kill()
        _close(one)


def _close(gateway: Gateway) -> None:
    for stream in (gateway.process.stdout, gateway.process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture(scope="session")
def sqs(gateway: Gateway) -> Iterator[Any]:
    client = gateway.sqs()
    yield client
    client.close()


@pytest.fixture
def name(queue_name: str) -> str:
    """A queue name that SQS allows."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", queue_name)[-80:]


@pytest.fixture(scope="session")
def rest(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client of the REST door."""
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as client:
        yield client


@pytest.fixture
def local(gateway: Gateway) -> Iterator[Visitor]:
    """Somebody at the page of a gateway that checks no accounts."""
    with Visitor(gateway.url) as one:
        yield one


@pytest.fixture
def queue(rest: httpx.Client, name: str) -> Iterator[str]:
    """The path of a queue of the test's own."""
    path = f"/queues/{name}"
    settings = {"linger": 0, "visibility_timeout": 60, "priorities": 2, "fairness": 0}
    assert 201 == rest.put(path, json={"settings": settings}).status_code
    yield path
    rest.delete(path)


@pytest.fixture(scope="session")
def master_key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("master") / "master.key"
    write_new(path)
    return path


@pytest.fixture(scope="session")
def guarded(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,  # noqa: ARG001 - as above
    master_key_file: Path,
) -> Iterator[Gateway]:
    """One gateway that checks accounts, for all tests that do not end it."""
    with running(cassandra, "--auth", "--master-key-file", str(master_key_file)) as one:
        yield one


@pytest.fixture
def new_account(client: cassieq.Client, master_key_file: Path) -> Iterator[Callable[[], Account]]:
    """``new_account()``: an account of the test's own."""
    made: list[Account] = []
    admin, master_key = AccountAdmin(client.store), MasterKey.load(master_key_file)

    def make() -> Account:
        first = portal.run(admin.create(f"acme-{new_uuid().hex[:12]}", master_key))
        made.append(Account(admin, master_key, first))
        return made[-1]

    yield make
    for one in made:
        portal.run(admin.delete(one.name, with_queues=True))


@contextmanager
def victimised(
    cassandra: EmbeddedCassandra, client: cassieq.Client, master_key_file: Path, body: str
) -> Iterator[tuple[Gateway, Account, Account]]:
    """A gateway, a stranger, and a victim with a message; at the end nothing of the victim's has
    changed, and the log of the gateway has no secret and no fault."""
    admin, master_key = AccountAdmin(client.store), MasterKey.load(master_key_file)
    names = (f"{who}-{new_uuid().hex[:12]}" for who in ("stranger", "victim"))
    stranger, victim = (
        Account(admin, master_key, portal.run(admin.create(name, master_key))) for name in names
    )
    queue = client.create_queue(f"{victim.name}/orders", linger=0)
    queue.put(body.encode())
    before = portal.run(admin.queues(victim.name))
    with running(cassandra, "--auth", "--master-key-file", str(master_key_file)) as gateway:
        yield gateway, stranger, victim

        (message,) = queue.peek()
        assert (body.encode(), 0) == (message.body, message.delivery_count)
        assert before == portal.run(admin.queues(victim.name))
        gateway.process.terminate()
        log = end(gateway.process).err
        for hidden in (body, stranger.key[1], victim.key[1], "request_failed"):
            assert hidden not in log, log
    for account in (stranger, victim):
        portal.run(admin.delete(account.name, with_queues=True))


@pytest.fixture
def account(new_account: Callable[[], Account]) -> Account:
    return new_account()


@pytest.fixture
def acme(guarded: Gateway, account: Account) -> Iterator[Any]:
    """A client of boto3 with the account's first key."""
    made = sqs_at(guarded.url, key=account.key)
    yield made
    made.close()
