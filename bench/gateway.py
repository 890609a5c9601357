"""``python -m bench.gateway``: messages through one gateway process, beside moto and ElasticMQ.

See ``docs/benchmarks.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import aiohttp
import psutil
from cassandra.cluster import Cluster

import cassieq_spark as cassieq
from bench import releases, report
from bench.servers import elasticmq, moto_server, our_server
from cassieq_spark.embedded import EmbeddedCassandra
from tests.fixtures.elasticmq import ELASTICMQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
KEYSPACE = "cassieq"
HEAP = "1g"
CLIENTS = 16
IN_TENS = 10
BODY_BYTES = 96
IDLE_POLLS = 1_000
POLL_S = 20
ASKED = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch")

TARGETS = {"messages_per_s": 2_500, "of_moto": 3.0, "idle_reads_per_s": 5.0, "idle_rss_mb": 300.0}
"""Of the phase in which all is done at once, and of the idle polls."""


ROUNDS_S = 120.0
"""On a slow machine there are fewer rounds: none begins later."""

PHASES = 2
"""How often the messages of a round go through: first apart, then together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is.

    Attributes:
        messages: Of each phase, at the gateway and at ElasticMQ.
        moto_messages: Of each phase at moto: few, as each that it holds makes every receive of it
            slower. So it is compared at its best.
        warm_up: Rounds that do not count.
        idle_s: How long the idle polls are watched.
    """

    messages: int
    moto_messages: int
    rounds: int
    warm_up: int
    polls: int
    idle_s: float


FULL = Size(messages=8_000, moto_messages=480, rounds=5, warm_up=3, polls=IDLE_POLLS, idle_s=20.0)
SMOKE = Size(messages=480, moto_messages=160, rounds=1, warm_up=0, polls=50, idle_s=2.0)

HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    # Nobody checks it here; moto finds the service by its scope.
    "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sqs/aws4_request, "
    "SignedHeaders=host, Signature=0",
}


@dataclass(slots=True)
class Side:
    """What was measured of one server.

    Attributes:
        messages: Of each phase.
        seconds: Of each phase, an entry for each round.
        requests: Seconds of each request, by its action.
        cpu: How much of a core the server's own process took.
        twice: Messages that came again inside their visibility timeout.
        done_at: When the last message was sent or deleted. What receives then wait for is nothing.
    """

    messages: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    requests: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    twice: int = 0
    done_at: float = 0.0


class Door:
    """One server, as 16 clients use it."""

    def __init__(self, url: str, http: aiohttp.ClientSession, side: Side) -> None:
        self._url = url
        self._http = http
        self._side = side

    async def ask(self, action: str, **body: Any) -> dict[str, Any]:
        """One request, timed."""
        began = perf_counter()
        headers = {**HEADERS, "X-Amz-Target": f"AmazonSQS.{action}"}
        async with self._http.post(self._url, data=json.dumps(body), headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200:  # noqa: PLR2004 - HTTP's OK
                raise SystemExit(f"{action}: {answer.status} {text}")
        ended = perf_counter()
        self._side.requests[action].append(ended - began)
        if action in ("SendMessageBatch", "DeleteMessageBatch"):
            self._side.done_at = ended
        found: dict[str, Any] = json.loads(text or "{}")
        if found.get("Failed"):
            raise SystemExit(f"{action}: {found['Failed']}")
        return found

    async def create(self, name: str) -> str:
        """Create a queue whose receipts outlive a slow round; return its URL."""
        attributes = {"VisibilityTimeout": "600"}
        created = await self.ask("CreateQueue", QueueName=name, Attributes=attributes)
        return str(created["QueueUrl"])

    async def send(self, queue: str, numbers: range) -> None:
        """Send messages in tens."""
        for first in range(numbers.start, numbers.stop, IN_TENS):
            entries = [
                {"Id": str(number), "MessageBody": f"{number:0{BODY_BYTES}}"}
                for number in range(first, min(first + IN_TENS, numbers.stop))
            ]
            await self.ask("SendMessageBatch", QueueUrl=queue, Entries=entries)

    async def drain(self, queue: str, got: set[str], messages: int) -> None:
        """Receive and delete in tens, with the other clients, until all are got."""
        while len(got) < messages:
            found = await self.ask(
                "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=IN_TENS, WaitTimeSeconds=1
            )
            some = found.get("Messages", [])
            self._side.twice += len(got & {one["Body"] for one in some})
            got |= {one["Body"] for one in some}
            if some:
                entries = [
                    {"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]}
                    for at, one in enumerate(some)
                ]
                await self.ask("DeleteMessageBatch", QueueUrl=queue, Entries=entries)


async def round_of(url: str, name: str, side: Side, servers: list[int]) -> None:
    """All clients send, then all receive and delete; then half do the one, half the other."""
    connector = aiohttp.TCPConnector(limit=2 * CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as http:
        door = Door(url, http, side)
        for how in ("apart", "together"):
            queue = await door.create(f"{name}-{how}")
            clients = CLIENTS if how == "apart" else CLIENTS // 2
            share = side.messages // clients
            sending = [
                door.send(queue, range(share * at, share * (at + 1))) for at in range(clients)
            ]
            got: set[str] = set()
            draining = [door.drain(queue, got, share * clients) for _ in range(clients)]
            if how == "apart":
                with timed(side, "send", servers):
                    await asyncio.gather(*sending)
                with timed(side, "receive", servers):
                    await asyncio.gather(*draining)
            else:
                with timed(side, "all", servers):
                    await asyncio.gather(*sending, *draining)
            if len(got) != share * clients:
                raise SystemExit(f"{share * clients} in, {len(got)} out")
            await door.ask("DeleteQueue", QueueUrl=queue)


@contextmanager
def timed(side: Side, name: str, servers: list[int]) -> Iterator[None]:
    """Note how long it takes, and how much of a core the server's own process takes."""
    before, began = cpu_s(servers), perf_counter()
    yield
    took_s = side.done_at - began
    side.seconds[name].append(took_s)
    side.cpu[name].append((cpu_s(servers) - before) / took_s)


def cpu_s(servers: list[int]) -> float:
    """CPU time of some processes so far."""
    times = [psutil.Process(one).cpu_times() for one in servers]
    return sum(one.user + one.system for one in times)


async def idle(
    url: str, server: int, reads: Reads, *, polls: int, seconds: float
) -> dict[str, Any]:
    """Long polls at one empty queue: what they cost the store, and the gateway."""
    connector = aiohttp.TCPConnector(limit=2 * polls)
    async with aiohttp.ClientSession(connector=connector) as http:
        door = Door(url, http, Side(0))
        queue = await door.create("idle")

        async def poll() -> None:
            while True:
                await door.ask("ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=POLL_S)

        waiting = [asyncio.create_task(poll()) for _ in range(polls)]
        try:
            # All have asked, and the gateway's poller has come to its longest pause.
            await asyncio.sleep(5.0)
            before, cpu, began = reads.count(), cpu_s([server]), perf_counter()
            await asyncio.sleep(seconds)
            took_s = perf_counter() - began
            return {
                "polls": polls,
                "reads_per_s": (reads.count() - before) / took_s,
                "cpu": (cpu_s([server]) - cpu) / took_s,
                "rss_mb": psutil.Process(server).memory_info().rss / 1e6,
            }
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def conditional_writes(url: str) -> float:
    """The LWTs of a gateway so far, with those that lost a race."""
    with urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310 - it is ours
        text = answer.read().decode()
    found = re.findall(r"^cassieq_cas_(?:applied|refused)_total (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


class Reads:
    """Counts the reads of our keyspace, as its coordinator has them: whoever sent them."""

    TABLES = ("coordinator_read_latency", "coordinator_scan_latency")

    def __init__(self, contact_points: str) -> None:
        host, port = contact_points.split(":")
        self._cluster = Cluster([host], port=int(port))
        self._session = self._cluster.connect()

    def count(self) -> int:
        """All reads so far."""
        return sum(
            row.count
            for table in self.TABLES
            for row in self._session.execute(f"SELECT * FROM system_views.{table}")  # noqa: S608
            if row.keyspace_name == KEYSPACE
        )

    def close(self) -> None:
        """Disconnect."""
        self._cluster.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a message was lost or came twice."""
    asked = _parser().parse_args(arguments)
    size = SMOKE if asked.smoke else FULL
    with EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra, ExitStack() as stack:
        client = stack.enter_context(cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE))
        client.bootstrap()
        started = _started(stack, cassandra.contact_points, asked.before)
        sides = {name: Side(_messages_of(name, size)) for name in started}
        for number in range(-size.warm_up, size.rounds):
            if number <= 0:
                began = perf_counter()
            elif perf_counter() - began > ROUNDS_S:
                break
            # In turns, so that none has the better moment.
            for name, (url, pid) in started.items():
                into = sides[name] if number >= 0 else Side(_messages_of(name, size))
                asyncio.run(round_of(url, f"r{number + size.warm_up}", into, [pid]))
            rounds = number + 1
            print(f"round {rounds}", file=sys.stderr)
        reads = Reads(cassandra.contact_points)
        stack.callback(reads.close)
        waiting = asyncio.run(
            idle(*started["cassieq"], reads, polls=size.polls, seconds=size.idle_s)
        )
        # Last of all: a gateway that is scraped begins to count queues.
        through = PHASES * size.messages * (size.warm_up + rounds)
        ours = [name for name in ("cassieq", "before") if name in started]
        lwts = {name: conditional_writes(started[name][0]) / through for name in ours}
    if sides["cassieq"].twice:
        raise SystemExit(f"{sides['cassieq'].twice} messages came twice inside their visibility")
    found = _result(sides, waiting)
    found |= {"rounds": rounds, "lwts_per_message": lwts["cassieq"], "targets": TARGETS}
    found |= {"heaps": {"cassandra": HEAP}, "releases": releases.commits(asked.before)}
    if "before" in sides:
        found["before"] = {"lwts_per_message": lwts["before"], "of_before": _of_before(sides)}
    found |= report.circumstances("python -m bench.gateway", sys.argv[1:])
    found["versions"] |= {"moto": version("moto"), "elasticmq": ELASTICMQ.version}
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    name = "gateway-smoke" if asked.smoke else "gateway"
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(_as_text(found))
    return 0


def _started(stack: ExitStack, points: str, before: Path | None) -> dict[str, tuple[str, int]]:
    """All servers, by their names: URLs and processes."""
    servers = {
        "cassieq": our_server(points, KEYSPACE),
        "moto": moto_server(),
        "elasticmq": elasticmq(),
    }
    if before is not None:
        releases.bootstrap(before, points, "bench_before")
        servers["before"] = our_server(points, "bench_before", before)
    return {name: stack.enter_context(server) for name, server in servers.items()}


def _messages_of(name: str, size: Size) -> int:
    return size.moto_messages if name == "moto" else size.messages


def _result(sides: dict[str, Side], waiting: dict[str, Any]) -> dict[str, Any]:
    moto = sides["moto"]
    return {
        "sides": {
            name: {
                phase: {
                    "messages_per_s": report.spread([side.messages / one for one in values]),
                    # Of the same round: the machine's moment is the same.
                    "of_moto": report.spread(
                        [
                            (side.messages / one) / (moto.messages / theirs)
                            for theirs, one in zip(moto.seconds[phase], values, strict=True)
                        ]
                    ),
                    "cpu": report.spread(side.cpu[phase]),
                    "samples_s": values,
                }
                for phase, values in side.seconds.items()
            }
            for name, side in sides.items()
        },
        "requests_ms": {
            name: {action: _quantiles(side.requests[action]) for action in ASKED}
            for name, side in sides.items()
        },
        "twice": {name: side.twice for name, side in sides.items()},
        "idle": waiting,
        "clients": CLIENTS,
        "in_tens": IN_TENS,
        "messages": {name: side.messages for name, side in sides.items()},
        "body_bytes": BODY_BYTES,
    }


def _of_before(sides: dict[str, Side]) -> dict[str, dict[str, float]]:
    """How fast we are, of the earlier release in the same round."""
    ours, theirs = sides["cassieq"], sides["before"]
    return {
        phase: report.spread(
            [before / after for before, after in zip(theirs.seconds[phase], values, strict=True)]
        )
        for phase, values in ours.seconds.items()
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ranked = sorted(seconds)
    last = len(ranked) - 1
    return {f"p{at}": ranked[round(last * at / 100)] * 1e3 for at in (50, 99)}


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'':<20}{'messages/s':>12}{'of moto':>10}{'cores':>8}"]
    for name, phases in found["sides"].items():
        lines += [
            f"{name + ', ' + phase:<20}{one['messages_per_s']['median']:>12,.0f}"
            f"{one['of_moto']['median']:>10.2f}{one['cpu']['median']:>8.2f}"
            for phase, one in phases.items()
        ]
    for name, actions in found["requests_ms"].items():
        shown = (f"{action} {one['p50']:.1f}/{one['p99']:.1f}" for action, one in actions.items())
        lines.append(f"{name}, p50/p99 in ms: {', '.join(shown)}; twice: {found['twice'][name]}")
    lines.append(f"{found['lwts_per_message']:.3f} LWTs a message; {found['rounds']} rounds")
    if earlier := found.get("before"):
        shown = (f"{phase} {one['median']:.2f}" for phase, one in earlier["of_before"].items())
        lines.append(
            f"of the earlier release: {', '.join(shown)}; "
            f"its LWTs a message: {earlier['lwts_per_message']:.3f}"
        )
    idle_ = found["idle"]
    lines.append(
        f"{idle_['polls']} idle long polls: {idle_['reads_per_s']:.1f} reads a second, "
        f"{idle_['cpu']:.1%} of a core, {idle_['rss_mb']:.0f} MB"
    )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    releases.add_before(parser)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
