"""Gateways for programs by other SDKs: one without accounts, one with them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import CommandLine
from tests.server.conftest import (
    _close,
    account,
    master_key_file,
    name,
    new_account,
    start_gateway,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.server.conftest import Gateway

__all__ = ["account", "master_key_file", "name", "new_account"]  # fixtures

IDLE_S = "1"
"""So long a connection may be idle: a program that waits for longer has it closed."""


@pytest.fixture(scope="module")
def unsigned_door(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,  # noqa: ARG001 - it has made the tables
) -> Iterator[Gateway]:
    with _door(cassandra) as started:
        yield started


@pytest.fixture(scope="module")
def accounts_door(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,  # noqa: ARG001 - as above
    master_key_file: Path,
) -> Iterator[Gateway]:
    with _door(cassandra, "--auth", "--master-key-file", str(master_key_file)) as started:
        yield started


@contextmanager
def _door(cassandra: EmbeddedCassandra, *arguments: str) -> Iterator[Gateway]:
    """A gateway that repairs, as usual: so dead letters move by themselves."""
    command = CommandLine(cassandra.contact_points)
    started = start_gateway(command, "--keep-alive", IDLE_S, *arguments)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.terminate()
        _close(started)
