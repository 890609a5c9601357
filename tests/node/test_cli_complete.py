"""What a shell is offered where the name of a queue belongs."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CASSIEQ

if TYPE_CHECKING:
    from collections.abc import Iterator

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra


def complete(contact_points: str, *words: str) -> tuple[int, list[str], str]:
    """(exit code, offers, standard error) for the last word."""
    done = subprocess.run(
        [CASSIEQ],
        env={
            **os.environ,
            "CASSIEQ_CONTACT_POINTS": contact_points,
            "CASSIEQ_KEYSPACE": KEYSPACE,
            "_CASSIEQ_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["cassieq", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *(["queue", "show"], ["put"], ["get", "--max-messages", "3"], ["watch"], ["repair"]),
        *(["dead", "show"], ["dead", "redrive", "x", "--to"], ["load", "get"]),
    ],
    ids=" ".join,
)
def test_a_shell_is_offered_the_queues_that_begin_so(
    cassandra: EmbeddedCassandra, client: cassieq.Client, queue_name: str, command: list[str]
) -> None:
    client.create_queue(queue_name)
    assert (0, [queue_name], "") == complete(cassandra.contact_points, *command, queue_name[:-3])


@pytest.fixture
def deaf() -> Iterator[str]:
    """Accepts connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_without_an_answer_there_is_silence(deaf: str) -> None:
    for nobody in (deaf, "127.0.0.1:1", "no such address"):
        assert (0, [], "") == complete(nobody, "queue", "show", "o")
