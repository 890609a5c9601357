"""The account that compose makes at its first start, and the gateway that checks it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.commands import CASSIEQ, CommandLine
from tests.server.conftest import Gateway, sqs_at
from tests.unit.test_conf_docker import compose

ACCOUNT = "local"
KEY = re.compile(r"^(access_key_id|secret_access_key)\s+(\S+)$", re.MULTILINE)


@pytest.fixture
def _no_account_before_or_after(client: cassieq.Client) -> Iterator[None]:
    yield
    portal.run(AccountAdmin(client.store).delete(ACCOUNT, with_queues=True))


@pytest.mark.usefixtures("_no_account_before_or_after")
def test_a_first_start_prints_a_key_that_the_gateway_takes_and_later_ones_leave_it(
    cassandra: EmbeddedCassandra, start: Callable[..., Gateway], tmp_path: Path
) -> None:
    services = compose()["services"]
    master_key = tmp_path / "master.key"
    variables = CommandLine(cassandra.contact_points).environment(
        CASSIEQ_MASTER_KEY_FILE=str(master_key),
        PATH=f"{CASSIEQ.parent}{os.pathsep}{os.environ['PATH']}",
    )
    # Compose reads $$ as one dollar.
    command = [word.replace("$$", "$") for word in services["account"]["command"]]

    def started() -> str:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=120, check=False
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout

    first = started()
    made = master_key.read_bytes()
    again = started()

    key = dict(KEY.findall(first))
    assert {"access_key_id", "secret_access_key"} == key.keys(), first
    assert "Account local is there" in again
    assert (made, {}) == (master_key.read_bytes(), dict(KEY.findall(again)))
    arguments = [one for one in services["gateway"]["command"][2:] if one != "0.0.0.0"]  # noqa: S104 - as it is there
    gateway = start(
        *(one for one in arguments if one != "--host"), "--master-key-file", str(master_key)
    )
    gateway.wait_until_ready()
    assert 403 == gateway.status("/?Action=ListQueues")
    sqs = sqs_at(gateway.url, key=(key["access_key_id"], key["secret_access_key"]))
    assert sqs.create_queue(QueueName="orders")["QueueUrl"].endswith("/orders")
    sqs.close()
