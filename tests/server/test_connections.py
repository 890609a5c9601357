"""Every connection ends: each of its states is held here for longer than its deadline."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from cassieq_spark.server.connection import DRAIN_S, Connection
from cassieq_spark.server.entrance import TURN_BYTES
from cassieq_spark.server.settings import MIB, GatewaySettings
from cassieq_spark.testing import ConditionNotMet, wait_until
from tests.fixtures.certificates import Authority
from tests.fixtures.small_gateway import (
    LARGE,
    SmallGateway,
    one_answer,
    small_gateway,
    until_closed,
)

BRIEF = GatewaySettings(port=0, request_timeout_s=0.4, keep_alive_s=0.4)
PATIENT = GatewaySettings(port=0)

TLS_RECORD = 16_384
"""What is decrypted of what came before."""

HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_ANSWER = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_LARGE_ANSWER = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n\r\n"

HELD = {
    "nothing": [b""],
    "only empty lines": [b"\r\n\r\n\r\n"],
    "half a request line": [b"GET /hel"],
    "half the headers": [b"GET /hello HTTP/1.1\r\nHos"],
    "half a body": [POST + b"Content-Length: 10\r\n\r\nabc"],
    "chunks without an end": [POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"],
    "a request, and then nothing": [HELLO],
    "a request, and then an empty line": [HELLO, b"\r\n"],
    "a request, and then a line end": [HELLO, b"\n"],
    "a request, and then two empty lines": [HELLO, b"\r\n\r\n"],
    "a request, and half of another": [HELLO, b"GET /hel"],
    "a request that is refused, and no body": [
        b"POST /headers HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    ],
}


@pytest.fixture(scope="module")
def brief() -> Iterator[SmallGateway]:
    with small_gateway(BRIEF) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def patient() -> Iterator[SmallGateway]:
    with small_gateway(PATIENT) as gateway:
        yield gateway


@pytest.mark.parametrize("sent", HELD.values(), ids=HELD)
def test_a_connection_that_sends_this_and_then_waits_is_ended(
    brief: SmallGateway, sent: list[bytes]
) -> None:
    with closing(brief.connect()) as connection:
        for at, part in enumerate(sent):
            connection.sendall(part)
            if at + 1 < len(sent):
                assert one_answer(connection).startswith(b"HTTP/1.1 200")
        wait_until(lambda: brief.open == 1 or _is_over(connection))
        brief.wait_until_alone()


def _is_over(connection: socket.socket) -> bool:
    """Whether there is an answer, or the connection has ended."""
    return bool(select.select([connection], [], [], 0)[0])


@pytest.mark.sample
@pytest.mark.parametrize(
    "sent",
    [LARGE_ANSWER, 400 * LARGE_ANSWER, LAST_LARGE_ANSWER],
    ids=["one answer", "400 answers", "the last answer"],
)
def test_a_client_that_does_not_read_is_ended(brief: SmallGateway, sent: bytes) -> None:
    with closing(brief.connect(buffer=4_096)) as connection:
        connection.sendall(sent)
        wait_until(lambda: brief.open == 1)
        brief.wait_until_alone()
    wait_until(lambda: brief.server._entrance.memory.used == 0)


def test_a_client_that_reads_on_gets_the_whole_answer(brief: SmallGateway) -> None:
    assert LARGE == len(brief.exchange(LAST_LARGE_ANSWER).partition(b"\r\n\r\n")[2])


@pytest.mark.sample
def test_no_part_of_an_answer_waits_for_the_client_to_confirm_the_part_before(
    patient: SmallGateway,
) -> None:
    # Headers and body are two writes. Else the second takes 40 ms on a connection that is reused.
    with closing(patient.connect()) as connection:
        connection.sendall(HELLO)
        assert one_answer(connection).endswith(b"hello")
        (ours,) = patient.server.server_state.connections
        ours_socket = ours.transport.get_extra_info("socket")
        assert ours_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.sample
def test_a_long_poll_may_wait_for_longer_than_any_deadline(brief: SmallGateway) -> None:
    brief.go.clear()
    with closing(brief.connect()) as poll:
        poll.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        brief.waits.wait(30)
        for held in (b"GET /hel", HELLO):
            assert b"HTTP/1.1" in brief.exchange(held)

        brief.go.set()
        assert one_answer(poll).endswith(b"waited")


def test_the_end_of_a_poll_that_nobody_waits_for_is_seen(brief: SmallGateway) -> None:
    brief.go.clear()
    with closing(brief.connect()) as poll:
        poll.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n\r\n")
        wait_until(lambda: brief.open == 1)
    brief.wait_until_alone()
    brief.go.set()


@pytest.mark.sample
def test_requests_that_come_too_early_are_answered_in_turn(patient: SmallGateway) -> None:
    bodies = [b"a" * 10, b"", b"b" * 100_000, b"c"]
    sent = b"".join(POST + b"Content-Length: %d\r\n\r\n%s" % (len(one), one) for one in bodies)

    got = patient.exchange(sent + b"GET /length HTTP/1.0\r\n\r\n")

    assert 5 == got.count(b"HTTP/1.1 200 OK")
    assert [b"10", b"0", b"100000", b"1", b"0"] == [
        part.partition(b"\r\n\r\n")[2] for part in got.split(b"HTTP/1.1 200 OK")[1:]
    ]
    assert 1 == patient.most_at_once


def test_where_a_request_ends_in_chunks_the_next_one_is_left_to_another_connection(
    patient: SmallGateway,
) -> None:
    chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    got = patient.exchange(chunks + HELLO)

    assert (1, True) == (got.count(b"HTTP/1.1 200 OK"), b"connection: close" in got)
    assert got.endswith(b"\r\n\r\n3")


@pytest.mark.sample
def test_a_refusal_is_never_written_into_an_answer(brief: SmallGateway) -> None:
    brief.go.clear()
    with closing(brief.connect()) as connection:
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /hel")
        assert b" 408 " in brief.exchange(b"GET /hel")
        brief.go.set()
        got = until_closed(connection)

    assert [b"waited", b""] == [
        part.partition(b"\r\n\r\n")[2] for part in got.split(b"HTTP/1.1 ")[1:]
    ]
    assert b"HTTP/1.1 408" in got


@pytest.mark.parametrize("early", [b"\r\n" * 100_000, HELLO * 100_000], ids=["lines", "requests"])
def test_what_comes_too_early_is_not_taken_into_memory(patient: SmallGateway, early: bytes) -> None:
    patient.go.clear()
    with closing(patient.connect()) as connection:
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.settimeout(1)
        with suppress(TimeoutError):  # it is not read
            connection.sendall(early)
        assert patient.server._entrance.memory.used <= 512 * 1024
        patient.go.set()
    patient.wait_until_alone()
    wait_until(lambda: patient.server._entrance.memory.used == 0)


def test_a_client_that_sends_everything_first_sees_why_it_was_refused(
    patient: SmallGateway,
) -> None:
    for path, size, status in ((b"/length", 5 * MIB, b"413"), (b"/headers", 3 * MIB, b"403")):
        with closing(patient.connect()) as connection:
            head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, size)
            connection.sendall(head + b"x" * size)
            assert until_closed(connection).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "request_line",
    [
        POST + b"Content-Length: 99999999999\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["refused", "answered early"],
)
def test_after_an_answer_no_more_of_a_body_is_taken_than_it_may_have(request_line: bytes) -> None:
    """Also within the time that a client has to see the answer."""
    settings = GatewaySettings(port=0, max_body_bytes=100_000)
    part, taken = b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 0
    with small_gateway(settings) as gateway, closing(gateway.connect()) as connection:
        connection.sendall(request_line)
        assert one_answer(connection).startswith(b"HTTP/1.1 ")
        with suppress(ConnectionError):
            while taken < 200 * MIB:
                connection.sendall(part)
                taken += len(part)
    assert taken < 50 * MIB, "the buffers of the system have less"


def test_a_request_of_very_many_tiny_headers_is_refused(patient: SmallGateway) -> None:
    for count, status in ((1_500, b"200"), (2_100, b"431")):
        headers = b"".join(b"a%d:\r\n" % at for at in range(count))

        got = patient.exchange(
            b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n"
        )

        assert got.startswith(b"HTTP/1.1 " + status)


def test_headers_have_the_same_limit_in_one_piece_and_in_many(patient: SmallGateway) -> None:
    headers = b"".join(b"a%d: %s\r\n" % (at, b"x" * 1_000) for at in range(50))
    request = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n"
    with closing(patient.connect()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(request), 400):
            connection.sendall(request[at : at + 400])
        got = until_closed(connection)

    assert got.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "begun", [b"0\r\nX: ", b"3;", b"3\r\nabc\r\n0\r\n"], ids=["trailer", "extension", "name"]
)
def test_a_line_between_or_after_chunks_has_the_limit_of_headers(
    patient: SmallGateway, begun: bytes
) -> None:
    with closing(patient.connect()) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + begun)
        taken = 0
        with suppress(ConnectionError):
            while taken < 20 * MIB:
                connection.sendall(b"x" * 65_536)
                taken += 65_536
        assert taken < 20 * MIB, "it is dropped, up to the length of a body"
        assert b"HTTP/1.1 431" in until_closed(connection)


def test_a_trailer_is_no_header_of_its_request(patient: SmallGateway) -> None:
    begun = b"POST /names HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(patient.connect()) as connection:
        connection.sendall(begun + b"3\r\nabc\r\n0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n")
        assert one_answer(connection).endswith(b"\r\n\r\nhost,transfer-encoding")


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
)
def test_a_body_is_never_left_out_as_its_client_offers_another_protocol(
    patient: SmallGateway, body: bytes
) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with closing(patient.connect()) as connection:
        for offered in (offer, offer.lower()):
            connection.sendall(POST + offered + body)
            assert one_answer(connection).endswith(b"3")
            connection.sendall(HELLO[:-2] + offered + b"\r\n")
            assert one_answer(connection).startswith(b"HTTP/1.1 200")


def test_an_offer_that_comes_in_pieces_is_refused_rather_than_its_body_left_out(
    patient: SmallGateway,
) -> None:
    with closing(patient.connect()) as connection:
        connection.sendall(POST + b"Connection: Upgrade\r\nUp")
        wait_until(lambda: patient.open == 1)
        (served,) = patient.server.server_state.connections
        wait_until(lambda: not served._is_whole)  # type: ignore[union-attr]
        connection.sendall(b"grade: h2c\r\nContent-Length: 3\r\n\r\nabc")
        got = until_closed(connection)
    assert (True, 1) == (got.startswith(b"HTTP/1.1 400"), got.count(b"HTTP/1.1"))


def test_an_address_that_is_none_is_refused_with_an_answer(patient: SmallGateway) -> None:
    tunnel = b"CONNECT other:443 HTTP/1.1\r\nHost: x\r\n\r\n"
    assert patient.exchange(tunnel).startswith(b"HTTP/1.1 400")
    with closing(patient.connect()) as connection:
        connection.sendall(HELLO)
        assert one_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(tunnel)
        assert until_closed(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("length", "answers"), [(3, [b"100", b"200"]), (99_999_999, [b"413"])], ids=["fits", "too long"]
)
def test_a_client_that_asks_first_sends_its_body_only_if_it_may(
    patient: SmallGateway, length: int, answers: list[bytes]
) -> None:
    with closing(patient.connect()) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length)
        got = one_answer(connection)
        if got.startswith(b"HTTP/1.1 100"):
            connection.sendall(b"abc")
            got += one_answer(connection)
    assert answers == [part[:3] for part in got.split(b"HTTP/1.1 ")[1:]]


def send_body(connection: socket.socket) -> None:
    """Send a body that is whole but for its last byte."""
    with suppress(ConnectionError):
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % (4 * MIB))
        connection.sendall(b"x" * (4 * MIB - 1))


@pytest.mark.sample
def test_memory_has_a_bound_for_all_connections_and_is_given_back() -> None:
    settings = GatewaySettings(port=0, max_memory_bytes=16 * MIB)
    with small_gateway(settings) as gateway, ExitStack() as stack:
        held = [stack.enter_context(closing(gateway.connect())) for _ in range(60)]
        threads = [threading.Thread(target=send_body, args=(one,)) for one in held]
        for one in threads:
            one.start()
        wait_until(lambda: sum(map(_is_over, held)) >= 56)
        for one in threads:
            one.join()

        assert gateway.server._entrance.memory.used <= 16 * MIB
        assert {b"HTTP/1.1 503"} == {one.recv(12) for one in held if _is_over(one)}
        stack.close()
        gateway.wait_until_alone()
        wait_until(lambda: gateway.server._entrance.memory.used == 0)
        assert b"\r\n\r\n5" in gateway.exchange(
            POST + b"Connection: close\r\nContent-Length: 5\r\n\r\nabcde"
        )


def test_what_comes_too_early_takes_no_memory_from_other_addresses() -> None:
    settings = GatewaySettings(port=0, max_memory_bytes=8 * MIB)
    with small_gateway(settings) as gateway, ExitStack() as stack:
        entrance = gateway.server._entrance
        greedy = [
            stack.enter_context(closing(gateway.connect(source="127.0.0.2"))) for _ in range(150)
        ]
        for one in greedy:
            one.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: gateway.waiting_now == len(greedy))
        for one in greedy:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.sendall(b"x" * 400_000)
        got = gateway.exchange(
            POST + b"Content-Length: 65536\r\n" + CLOSE + b"y" * 65_536, source="127.0.0.3"
        )

        assert got.startswith(b"HTTP/1.1 200")
        assert entrance.memory.used <= 5 * MIB
        gateway.go.set()
        gateway.wait_until_alone()
        wait_until(lambda: entrance.memory.used == 0)


@pytest.mark.sample
def test_one_address_cannot_take_all_connections() -> None:
    settings = GatewaySettings(port=0, max_connections=10)
    with small_gateway(settings) as gateway, ExitStack() as stack:
        greedy = [
            stack.enter_context(closing(gateway.connect(source="127.0.0.2"))) for _ in range(10)
        ]
        wait_until(lambda: gateway.server._entrance._connections.used == 5)
        assert [b"HTTP/1.1 503"] * 5 == [one_answer(one)[:12] for one in greedy[5:]]
        last = HELLO.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

        assert b" 200 " in gateway.exchange(last, source="127.0.0.3")
        assert b" 503 " in gateway.exchange(last, source="127.0.0.2")
        for one in greedy[:5]:
            stack.enter_context(closing(one)).close()
        wait_until(lambda: gateway.server._entrance._connections.used == 0)


def test_a_request_whose_client_has_gone_counts_as_a_connection_until_it_ends() -> None:
    settings = GatewaySettings(port=0, max_connections=10)
    last = HELLO[:-2] + CLOSE
    with small_gateway(settings) as gateway:
        connections = gateway.server._entrance._connections
        for at in range(5):
            with closing(gateway.connect(source="127.0.0.2")) as one:
                one.sendall(HELLO.replace(b"hello", b"work"))
                wait_until(lambda at=at: gateway.waiting_now == at + 1)  # type: ignore[misc]
        gateway.wait_until_alone()
        wait_until(lambda: connections.used == 5)

        assert b" 503 " in gateway.exchange(last, source="127.0.0.2")
        assert b" 200 " in gateway.exchange(last, source="127.0.0.3")
        gateway.go.set()
        wait_until(lambda: connections.used == 0)
        assert b" 200 " in gateway.exchange(last, source="127.0.0.2")


def test_a_proxy_that_is_trusted_may_take_all_connections() -> None:
    settings = GatewaySettings(port=0, max_connections=10)
    with small_gateway(settings) as gateway, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(closing(gateway.connect()))
        wait_until(lambda: gateway.open == 10)

        assert b" 503 " in gateway.exchange(HELLO)


@pytest.mark.sample
def test_a_reset_leaves_nothing_behind(patient: SmallGateway) -> None:
    gc.disable()
    try:
        with closing(patient.connect()) as connection:
            connection.sendall(HELLO)
            assert one_answer(connection).endswith(b"hello")
            (left,) = [weakref.ref(one) for one in patient.server.server_state.connections]
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: left() is None)
    finally:
        gc.enable()


def test_sigterm_waits_for_answers_and_not_for_clients() -> None:
    with small_gateway(PATIENT) as gateway, ExitStack() as stack:
        idle = stack.enter_context(closing(gateway.connect()))
        idle.sendall(HELLO)
        assert one_answer(idle).endswith(b"hello")
        poll = stack.enter_context(closing(gateway.connect()))
        poll.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        gateway.waits.wait(30)

        gateway.server.should_exit = True

        assert b"" == until_closed(idle)
        assert until_closed(poll).endswith(b"waited")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ssl.SSLContext]:
    """The settings of a gateway with a certificate, and what trusts it."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority("gateway ca")
    certificate, key = authority.sign("gateway", address="127.0.0.1").write(directory, "gateway")
    context = ssl.create_default_context(cafile=authority.write(directory / "ca.pem"))
    return {"tls_cert": certificate, "tls_key": key}, context


@contextmanager
def connected(gateway: SmallGateway, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """A connection over TLS."""
    with (
        closing(gateway.connect()) as plain,
        closing(context.wrap_socket(plain, server_hostname="127.0.0.1")) as found,
    ):
        yield found


def test_over_tls_a_client_that_sends_everything_first_sees_why_it_was_refused(
    tls: tuple[dict[str, Any], ssl.SSLContext],
) -> None:
    files, context = tls
    with small_gateway(GatewaySettings(port=0, **files)) as gateway:
        for path, size, status in ((b"/length", 5 * MIB, b"413"), (b"/headers", 3 * MIB, b"403")):
            with connected(gateway, context) as connection:
                head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, size)
                connection.sendall(head + b"x" * size)
                assert until_closed(connection).startswith(b"HTTP/1.1 " + status)


def test_over_tls_a_last_answer_is_waited_for_like_any_other(
    tls: tuple[dict[str, Any], ssl.SSLContext],
) -> None:
    """To end TLS takes a moment of its own, which begins when all is read."""
    files, context = tls
    with small_gateway(GatewaySettings(port=0, **files)) as gateway:
        with connected(gateway, context) as connection:
            connection.sendall(LAST_LARGE_ANSWER)
            wait_until(lambda: gateway.open == 1)
            with pytest.raises(ConditionNotMet):
                wait_until(lambda: gateway.open == 0, deadline_s=1.5 * DRAIN_S)
            assert LARGE == len(until_closed(connection).partition(b"\r\n\r\n")[2])
        gateway.wait_until_alone()


def test_over_tls_each_state_has_its_deadline_and_a_handshake_counts(
    tls: tuple[dict[str, Any], ssl.SSLContext],
) -> None:
    files, context = tls
    settings = GatewaySettings(
        port=0,
        request_timeout_s=0.5,
        keep_alive_s=0.5,
        max_connections=8,
        **files,
    )
    with small_gateway(settings) as gateway, ExitStack() as stack:
        used = gateway.server._entrance._connections
        silent = [stack.enter_context(closing(gateway.connect())) for _ in range(12)]
        assert {b"", b"<reset>"} >= {until_closed(one) for one in silent}
        wait_until(lambda: used.used == 0)

        for sent in (b"", b"GET /hel", HELLO, HELLO + b"\r\n", LARGE_ANSWER):
            plain = stack.enter_context(closing(gateway.connect(buffer=4_096)))
            wrapped = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            wrapped.sendall(sent)
        wait_until(lambda: used.used == 0)
        assert 0 == gateway.server._entrance.memory.used


@pytest.mark.sample
@pytest.mark.parametrize("sent", [b"", b"GET /hel", HELLO])
def test_over_tls_a_client_that_goes_leaves_no_error_and_no_timer(
    tls: tuple[dict[str, Any], ssl.SSLContext], caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    files, context = tls
    with small_gateway(GatewaySettings(port=0, **files)) as gateway:
        with connected(gateway, context) as connection:
            connection.sendall(sent)
            if sent == HELLO:
                assert one_answer(connection).endswith(b"hello")
            wait_until(lambda: gateway.open == 1)
            (served,) = gateway.server.server_state.connections
        gateway.wait_until_alone()
        assert served._timer is None
    assert [] == [record.getMessage() for record in caplog.records]


def test_the_end_of_tls_may_be_asked_for_twice(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    """Asyncio's transport under TLS forgets what it is of when it is closed a second time."""
    files, context = tls
    with small_gateway(GatewaySettings(port=0, **files)) as gateway:
        with connected(gateway, context):
            wait_until(lambda: gateway.open == 1)
            (served,) = gateway.server.server_state.connections
            wire, loop = served._wire, served.loop  # type: ignore[union-attr]

            async def ended_twice() -> int:
                wire.finish()
                wire.finish()
                return int(wire.unread)

            assert 0 == asyncio.run_coroutine_threadsafe(ended_twice(), loop).result(10)
        gateway.wait_until_alone()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_one_turn_of_the_loop_parses_a_little_of_a_connection(
    is_tls: bool, tls: tuple[dict[str, Any], ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body in chunks of one byte takes the parser a quarter of a second for each MiB."""
    turns = [0]
    received = Connection.data_received

    def noted(self: Connection, data: bytes) -> None:
        self.loop.call_soon(turns.append, 0)
        turns[-1] += len(data)
        received(self, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    files, context = tls
    settings = GatewaySettings(port=0, **files) if is_tls else PATIENT
    with ExitStack() as stack:
        gateway = stack.enter_context(small_gateway(settings))
        connection = stack.enter_context(
            connected(gateway, context) if is_tls else closing(gateway.connect())
        )
        body = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"
        connection.sendall(POST + body)
        assert one_answer(connection).endswith(b"100000")
        # Nor does it if nobody reads for a while: what comes too early waits for the answer.
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gateway.waits.wait(30)
        sending = threading.Thread(target=connection.sendall, args=(POST + body,))
        sending.start()
        sending.join(0.5)
        gateway.go.set()
        answers = b""
        while not answers.endswith(b"100000"):  # they may come together
            answers += one_answer(connection)
        assert b"waited" in answers.partition(b"100000")[0]
        sending.join()
    assert sum(turns) > 1_200_000
    assert max(turns) <= TURN_BYTES + TLS_RECORD
