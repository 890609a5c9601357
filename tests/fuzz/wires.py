"""Raw connections that stall, cut, repeat and interleave at each state of a connection.

They come in waves. At the end of each, all that still hold on do nothing more, and the gateway must
have ended every one of them by then.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import psutil
from botocore.exceptions import ClientError
from hypothesis import strategies as st

from tests.fixtures.accounts import signed
from tests.fuzz.book import framed, wrong
from tests.fuzz.sqs import Over, batches, drawn
from tests.fuzz.stage import KEEP_ALIVE_S, REQUEST_S, Running, Stage, source

WAVES: Final = 10
SCRIPTS: Final = 40
SENDING_S: Final = 15.0
"""How long a script waits for a gateway that does not read on."""

HELD_S: Final = max(REQUEST_S, KEEP_ALIVE_S) + 2 + 2 + 1
"""A state's longest deadline, then those of draining and closing, and a look (connection.py)."""
LONGEST_S: Final = 120.0
"""As long as a wave may take, however slowly its requests are answered."""
SLACK_S: Final = 10.0
"""A busy machine's own delay: what is not over by then is not late, but stuck."""

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d\d\d)")

HOST: Final = b"Host: 127.0.0.1\r\n"
FORM: Final = b"Action=SendMessage&QueueUrl=http://x/000000000000/wire&MessageBody="
POST: Final = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def post(body: bytes, head: bytes = b"") -> bytes:
    return POST + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


REQUESTS: Final[dict[str, bytes]] = {
    "alive": b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "large answer": b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n",
    "page": b"GET /ui/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "head": b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "options": b"OPTIONS / HTTP/1.1\r\n" + HOST + b"\r\n",
    "put": post(FORM + b"x" * 300),
    "put many": post(FORM + b"x" * 200_000),
    "receive": post(b"Action=ReceiveMessage&QueueUrl=http://x/000000000000/wire"),
    "poll": post(b"Action=ReceiveMessage&WaitTimeSeconds=1&QueueUrl=http://x/000000000000/empty"),
    "json": post(
        b'{"QueueUrl":"http://x/000000000000/wire"}', b"X-Amz-Target: AmazonSQS.PurgeQueue\r\n"
    ),
    "rest": post(b"hello").replace(b"POST / ", b"POST /v1/queues/wire/messages "),
    "chunked": CHUNKED + b"%x\r\n%s\r\n3;a=b\r\nabc\r\n0\r\nX-T: 1\r\n\r\n" % (len(FORM), FORM),
    "expect": post(FORM + b"x", b"Expect: 100-continue\r\n"),
    "too large": POST + b"Content-Length: 9999999\r\n\r\n" + b"x" * 100_000,
    "huge length": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "large body": POST + b"Content-Length: 2000000\r\n\r\n" + b"x" * 2_000_000,
}  # fmt: skip
WRONG: Final[dict[str, bytes]] = {
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    "length and chunks": CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "less than nothing": POST + b"Content-Length: -1\r\n\r\n",
    "a chunk too long": CHUNKED + b"ffffffffffffffff\r\nabc",
    "no chunk": CHUNKED + b"xyz\r\n",
    "upgrade": (
        b"GET /ui/ HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n" + HOST + b"\r\n"
    ),
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/1.0": b"GET /healthz HTTP/1.0\r\n\r\n",
    "http/0.9": b"GET /healthz\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "long line": b"GET /" + b"x" * 70_000,
    "many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 12_000,
    "empty lines": b"\r\n" * 50,
    "zeros": b"\0" * 200,
    "a handshake": bytes.fromhex("16030100a5010000a10303") + b"\0" * 40,
}  # fmt: skip
ENDS: Final = ("hold", "hold", "hold unread", "close", "reset", "half", "slow")


@dataclass(frozen=True, slots=True)
class Script:
    """What one connection does.

    Attributes:
        cuts: Where the bytes are sent in parts, in thousandths of the places where a state ends.
        stops: Nothing is sent after the last cut.
        change: Bytes that are changed, as in the grammar.
        pause_ms: Between parts.
    """

    gateway: str
    requests: tuple[str, ...]
    cuts: tuple[int, ...]
    stops: bool
    change: tuple[int, int, bytes] | None
    pause_ms: int
    end: str
    is_bare: bool

    @property
    def methods(self) -> list[str] | None:
        """Of its requests, if each is right and all is sent."""
        if self.change or not set(self.requests) <= REQUESTS.keys() | {"signed"}:
            return None
        return [REQUESTS.get(one, POST).partition(b" ")[0].decode() for one in self.requests]


scripts = st.builds(
    Script,
    gateway=st.sampled_from(["accounts", "open"]),
    requests=st.one_of(
        st.lists(st.sampled_from([*REQUESTS, "signed"]), min_size=1, max_size=4).map(tuple),
        st.lists(st.sampled_from([*REQUESTS, *WRONG, "signed"]), min_size=1, max_size=4).map(tuple),
        st.sampled_from(["alive", "large answer"]).map(lambda one: (one,) * 60),
        st.sampled_from(["put", "signed", "receive"]).map(lambda one: (one,) * 6),
    ),
    cuts=st.lists(st.integers(0, 1_000), max_size=4).map(lambda found: tuple(sorted(found))),
    stops=st.booleans(),
    change=st.one_of(
        st.none(),
        st.none(),
        st.tuples(st.integers(0, 1_000), st.integers(0, 5), st.binary(max_size=3)),
    ),
    pause_ms=st.sampled_from([0, 0, 5, 50]),
    end=st.sampled_from(ENDS),
    is_bare=st.integers(0, 5).map(lambda n: n == 0),
)  # fmt: skip


def places(text: bytes) -> list[int]:
    """Where a connection's state changes, and beside it."""
    found = {0, 1, 2, len(text) // 2, len(text) - 1, len(text)}
    for one in list(re.finditer(rb"\r\n|: | |&", text[:20_000]))[:300]:
        found |= {one.start(), one.start() + 1, one.end()}
    return sorted(one for one in found if 0 <= one <= len(text))


def parts(text: bytes, script: Script) -> list[bytes]:
    if script.change is not None:
        at = script.change[0] * len(text) // 1_000
        text = text[:at] + script.change[2] + text[at + script.change[1] :]
    where = places(text)
    cuts = [0, *(where[one * (len(where) - 1) // 1_000] for one in script.cuts), len(text)]
    found = [text[a:b] for a, b in pairwise(cuts)]
    return found[:-1] if script.stops and len(found) > 1 else found


@dataclass(slots=True)
class Played:
    """A connection whose script is over, and what it has got."""

    port: int
    script: Script
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reading: asyncio.Task[None] | None = None
    got: bytearray = field(default_factory=bytearray)
    last_s: float = field(default_factory=time.monotonic)

    async def read(self) -> None:
        with suppress(OSError):
            while part := await self.reader.read(65_536):
                self.got += part
                self.last_s = time.monotonic()


class Wires:
    """Runs waves until the run is over, and at least one."""

    _has_played = False

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def run(self, first: int) -> None:
        wave = st.lists(scripts, min_size=SCRIPTS // 2, max_size=SCRIPTS)

        def send(many: list[Script]) -> None:
            if self._has_played and self._stage.is_over:
                raise Over
            self._has_played = True
            asyncio.run(self._wave(many))

        def batch(number: int) -> None:
            self._empty_queues()
            drawn(number, wave, WAVES, send)

        batches(self._stage, first, batch, "wires")

    def _empty_queues(self) -> None:
        """Nobody receives what the scripts put."""
        for one in list(self._stage.gateways.values()):
            sqs = one.sqs(self._stage.accounts[0].key)
            url = sqs.create_queue(QueueName="wire")["QueueUrl"]
            with suppress(ClientError):  # it was purged less than a minute ago
                sqs.purge_queue(QueueUrl=url)
            sqs.close()

    async def _wave(self, many: list[Script]) -> None:
        key = self._stage.accounts[0].key
        self._signed = {
            name: written_signed(one, key, self._stage.numbers[0])
            for name, one in self._stage.gateways.items()
        }
        played = await asyncio.gather(*(self._one(at, one) for at, one in enumerate(many)))
        mine = {one.port: one for one in played if one is not None}
        began = time.monotonic()
        left = await self._until_ended(mine)
        took_s = time.monotonic() - began
        book = self._stage.book
        book.count("wires", "waves")
        book.most("wires: all ended within s", took_s)
        for port in left:
            script = mine[port].script
            book.find(
                "wires", f"a connection does not end: {script.end}", script=asdict(script),
                seconds=took_s, load=os.getloadavg(),
            )  # fmt: skip
        for one in mine.values():
            one.writer.transport.abort()
            if one.reading is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(one.reading, 10)
                self._judge(one.script, bytes(one.got))

    async def _until_ended(self, mine: dict[int, Played]) -> set[int]:
        """Those that the gateways still have, although nothing has come from them for too long."""
        until = time.monotonic() + LONGEST_S
        left, late = set(mine), set[int]()
        while left > late and time.monotonic() < until:
            await asyncio.sleep(0.25)
            found: set[int] = set()
            for one in list(self._stage.gateways.values()):
                with suppress(OSError, psutil.Error):
                    found |= one.ports()
            left &= found
            held_s = HELD_S + SLACK_S
            late = {port for port in left if time.monotonic() - mine[port].last_s > held_s}
        return left

    async def _one(self, at: int, script: Script) -> Played | None:
        gateway = self._stage.gateways[script.gateway]
        made = source(at)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        tls = None if script.is_bare else gateway.tls
        try:
            async with asyncio.timeout(SENDING_S):
                await asyncio.get_running_loop().sock_connect(made, gateway.address)
                port = made.getsockname()[1]
                reader, writer = await asyncio.open_connection(
                    sock=made, ssl=tls, limit=4_096,
                    server_hostname=gateway.address[0] if tls else None,
                )  # fmt: skip
        except (OSError, TimeoutError) as error:
            made.close()
            self._stage.book.count("wires", "not connected:", type(error).__name__)
            return None
        played = Played(port, script, reader, writer)
        try:
            await self._play(played)
        except BaseException:  # the attack is over: nobody else knows of it
            writer.transport.abort()
            raise
        return played

    async def _play(self, played: Played) -> None:
        script, writer = played.script, played.writer
        known = {**REQUESTS, **WRONG, "signed": self._signed[script.gateway]}
        if script.end not in ("hold unread", "slow"):
            played.reading = asyncio.create_task(played.read())
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(SENDING_S):
                for part in parts(b"".join(known[one] for one in script.requests), script):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(script.pause_ms / 1e3)
                await self._end(script, played.reader, writer)
        played.last_s = time.monotonic()
        self._stage.book.count("wires", script.end)

    async def _end(self, script: Script, reader: asyncio.StreamReader, writer: Any) -> None:
        match script.end:
            case "close":
                writer.close()
            case "reset" if (bare := writer.get_extra_info("socket")) is not None:
                bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case "half" if writer.can_write_eof():
                writer.write_eof()
            case "slow":
                for _ in range(50):
                    if not await reader.read(512):
                        return
                    await asyncio.sleep(0.05)

    def _judge(self, script: Script, got: bytes) -> None:
        problem = None
        for status in _STATUS.findall(got):
            self._stage.book.count("wires", "answers", int(status))
            problem = problem or wrong(int(status), got, self._stage.hidden_from(0))
        if problem is None and script.methods is not None and not script.is_bare:
            problem = framed(got, script.methods)
        if problem is not None:
            self._stage.book.find(
                "wires", problem, script=asdict(script), got=base64.b64encode(got[:20_000]).decode()
            )


def written_signed(gateway: Running, key: tuple[str, str], number: str) -> bytes:
    """A request of an account's, as its SDK would write it."""
    fields = {"Action": "SendMessage", "QueueUrl": f"http://x/{number}/wire", "MessageBody": "x"}
    request = signed(key, gateway.url, fields.items())
    heads = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    host = "{}:{}".format(*gateway.address)
    return (
        f"POST / HTTP/1.1\r\nHost: {host}\r\n{heads}Content-Length: {len(request.body)}\r\n\r\n"
    ).encode() + request.body
