"""What a client says that finds no Cassandra: an error of ours, on one line, naming the address."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import CassieqError, OptionInvalid, StoreUnavailable
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.testing import EmbeddedCassandra

NOWHERE = "no-such-host.invalid"
"""RFC 6761: a name under .invalid never has an address."""

ANSWERS = {
    "closes at once": b"",
    "speaks HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\nnot found",
    "speaks SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "answers CQL that cannot be": b"\x85\0\0\0\x06\0\0\0\x02\0\x01",
    "answers CQL of a size that cannot be": b"\x85\0\0\0\x06\x7f\xff\xff\xff",
    "answers as Cassandra 2 does": b"\x83\0\0\0\0\0\0\0\x14\0\0\0\x0a\0\x0eInvalid or uns",
}


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that is no Cassandra."""
    answer: bytes = request.param
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if answer and connection.recv(1_000):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def refused(contact_points: str) -> CassieqError:
    with pytest.raises(CassieqError) as caught:
        cassieq.connect(contact_points, connect_timeout=1)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("contact_points", "named"),
    [
        (f"{NOWHERE}:9042", f"'{NOWHERE}'"),
        (f"{NOWHERE},also-none.invalid:1", f"'{NOWHERE}' and 'also-none.invalid'"),
        ("256.256.256.256", "'256.256.256.256'"),
        ("é.invalid", "'é.invalid'"),
    ],
)
def test_a_host_without_an_address_is_named(contact_points: str, named: str) -> None:
    error = refused(contact_points)

    assert isinstance(error, StoreUnavailable)
    assert f"knows no address of {named}" in str(error)


def test_beside_a_host_that_does_not_answer_one_without_an_address_is_named_too() -> None:
    text = str(refused(f"127.0.0.1:1,{NOWHERE}:2"))

    assert f"127.0.0.1:1, {NOWHERE}:2" in text
    assert f"knows no address of '{NOWHERE}'" in text


def test_a_host_without_an_address_is_no_obstacle_where_another_answers(
    cassandra: EmbeddedCassandra,
) -> None:
    with cassieq.connect(f"{cassandra.contact_points},{NOWHERE}") as client:
        assert cassandra.datacenter == client.datacenter


@pytest.mark.parametrize("stranger", ANSWERS.values(), ids=list(ANSWERS), indirect=True)
def test_what_is_no_cassandra_is_store_unavailable(stranger: str) -> None:
    error = refused(stranger)

    assert isinstance(error, StoreUnavailable)
    assert f"no Cassandra answers at {stranger} (tried for " in str(error)


def test_an_ipv6_address_is_shown_as_it_is_given() -> None:
    assert "no Cassandra answers at [::1]:1 (tried for 0." in str(refused("[::1]:1"))


@pytest.mark.parametrize("host", [".", "..", "a..b", "x" * 64, f"{'x' * 64}.invalid", ".a"])
def test_what_can_be_no_host_name_is_refused_before_it_is_looked_up(host: str) -> None:
    error = refused(f"{host}:9042")

    assert isinstance(error, OptionInvalid)
    assert "option 'contact_points'" in str(error)


@pytest.mark.parametrize(
    "command",
    [
        ("bootstrap",),
        ("put", "q", "x"),
        ("get", "q"),
        ("ack", "q", "x"),
        ("peek", "q"),
        ("watch", "q"),
        ("load", "put", "q"),
        ("load", "get", "q"),
        ("queue", "list"),
        ("repair",),
        ("dead", "list"),
        ("dead", "show", "q"),
        ("dead", "redrive", "q", "--yes"),
    ],
    ids=" ".join,
)
def test_each_command_says_so_on_one_line(command: tuple[str, ...]) -> None:
    done = CommandLine(NOWHERE)(*command)

    assert (1, "") == (done.code, done.out)
    assert [line for line in done.err.splitlines() if NOWHERE in line] == done.err.splitlines()
    assert done.err.startswith("[cassieq:store_unavailable] ")


def test_a_command_of_its_own_process_says_no_more_than_that() -> None:
    done = end(CommandLine(NOWHERE).start("get", "q"))

    assert (1, "", 1) == (done.code, done.out, len(done.err.splitlines()))
    assert NOWHERE in done.err
