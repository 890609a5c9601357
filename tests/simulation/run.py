"""Run a seed: a world with clients and faults, then its end in peace; judge what they saw."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.actors import Consumer, Log, Producer, Repairer, mischief
from tests.simulation.draws import Draws
from tests.simulation.world import COPIES, DATACENTER, World
from tests.storm.book import read
from tests.storm.checker import Anomaly, check

if TYPE_CHECKING:
    from tests.storm.history import Entry

FAULTS_S = 60.0
DRAINED_WITHIN_S = 900.0
DEAD = "dead"


@dataclass(frozen=True)
class Result:
    """What became of a seed."""

    seed: int
    anomalies: list[Anomaly]
    digest: str
    statements: int
    virtual_s: float
    seen: Counter[str]
    history: list[Entry]


def run(seed: int, trace: list[tuple[Any, ...]] | None = None) -> Result:
    """Run one seed."""
    world = World(seed, trace=trace)
    history: list[Entry] = []
    with world.running():
        client = world.connect()
        client.bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        draws = Draws(seed, "queues")
        client.create_queue(DEAD)
        settings: dict[str, Any] = {
            "bucket_size": draws.choice([4, 10, 60, 1000]),
            "priorities": draws.choice([1, 1, 2]),
            "shards": draws.choice([1, 1, 3]),
            "linger": draws.choice([0.02, 0.02, 1.0]),
        }
        if draws.random() < 0.5:
            settings |= {"max_deliveries": draws.choice([2, 4]), "dead_letter_queue": DEAD}
        client.create_queue("orders", **settings)
        main = world.loop.create_task(_play(world, history))
        world.loop.finish(main)
        anomalies = main.result()
        world.close()
    history.sort(key=lambda entry: entry["at"])
    anomalies += check(history, dead_letters=DEAD)
    anomalies += hidden(history)
    return Result(
        seed, anomalies, world.digest, world.statements, world.loop.time(), world.seen, history
    )


async def _play(world: World, history: list[Entry]) -> list[Anomaly]:
    draws = Draws(world.seed, "play")
    loop = world.loop
    tasks: dict[str, list[asyncio.Task[None]]] = defaultdict(list)
    logs: dict[str, list[Log]] = defaultdict(list)
    transports = []
    is_over = False
    for number in range(draws.randint(2, 4)):
        client, transport = await world.connected()
        transports.append(transport)
        queue, dead = await client.queue("orders"), await client.queue(DEAD)
        name = transport.name

        def log(what: str, name: str = name) -> Log:
            made = Log(world, history, f"{what} of {name}")
            logs[name].append(made)
            return made

        works: list[Any] = []
        if number == 0 or draws.random() < 0.6:
            works.append(Producer(world, [queue], log("producer"), draws.choice([20, 60])).work())
        for which in range(draws.randint(0 if number else 1, 2)):
            one = Consumer(world, queue, log(f"consumer {which}"))
            works.append(one.work(lambda: is_over))
        if draws.random() < 0.3:
            works.append(Consumer(world, dead, log("dead")).work(lambda: is_over))
        if draws.random() < 0.4:
            works.append(Repairer(world, client, log("repair")).work(lambda: is_over))
        tasks[name] += [loop.create_task(work) for work in works]
    begun_s = loop.time()
    trouble = loop.create_task(mischief(world, transports, begun_s + FAULTS_S))

    async def silence() -> None:
        """Let the actors of a killed client say nothing more."""
        while not is_over:
            for transport in transports:
                if transport.is_dead:
                    for one in logs[transport.name]:
                        one.is_silent = True
                    for task in tasks[transport.name]:
                        task.cancel()
            await asyncio.sleep(0.01)

    watch = loop.create_task(silence())
    await trouble
    await asyncio.sleep(30)
    is_over = True
    alive = [task for name, some in tasks.items() for task in some if not task.done()]
    for task in alive:
        try:
            await asyncio.wait_for(task, 600)
        except TimeoutError:
            return [Anomaly(kind="stuck", what=f"{task} has not ended")]
        except asyncio.CancelledError:
            continue
    await watch
    return await _drain(world, history)


async def _drain(world: World, history: list[Entry]) -> list[Anomaly]:
    """Take all that is left, and look at the tables."""
    client, _ = await world.connected()
    log = Log(world, history, "runner")
    consumers = [
        Consumer(world, await client.queue(name), log, (120.0,)) for name in ("orders", DEAD)
    ]
    ends_s = world.loop.time() + DRAINED_WITHIN_S
    quiet = 0
    while quiet < 3:
        got = 0
        for one in consumers:
            messages = await one.get(100, 120.0, 0)
            await one.ack(messages)
            got += len(messages)
        await client.repair(full=True)
        stats = [await (await client.queue(name)).stats() for name in ("orders", DEAD)]
        left = sum(one.visible + one.in_flight + one.delayed + one.dead for one in stats)
        quiet = quiet + 1 if not got and not left else 0
        if world.loop.time() > ends_s:
            return [Anomaly(kind="stuck", what=f"{left} messages are left: {stats}")]
        if not got:
            await asyncio.sleep(5)
    report = await client.verify()
    return [Anomaly(kind="tables", what=str(one)) for one in (*report.findings, *report.problems)]


def hidden(history: list[Entry]) -> list[Anomaly]:
    """Gets that said "nothing" though a message was visible all the time (I10).

    A message that was stored before the get began, without a delay or an end, and that nobody was
    given before the get ended.
    """
    book = read(history)
    stored_at: dict[str, float] = {}
    first: dict[str, float] = {}
    for entry in history:
        if entry["what"] == "put":
            stored_at |= dict.fromkeys(entry["stored"], entry["at"])
        elif entry["what"] == "got":
            for key, *_ in entry["named"]:
                first[key] = min(first.get(key, math.inf), entry["begun"])
    dead_first = {
        key for (queue, _), counts in book.handed.items() if queue == DEAD
        for some in counts.values() for handing in some for key in [handing.key]
    }
    plain = sorted(
        (at, key)
        for key, at in stored_at.items()
        if not book.put[key][1] and key not in book.lives and key not in dead_first
    )
    # Whoever is killed may have been given a message and could not say so.
    found = []
    for entry in history:
        if entry["what"] != "nothing" or entry["queue"] == DEAD:
            continue
        for at, key in plain:
            if at >= entry["begun"]:
                break
            if first.get(key, math.inf) > entry["at"] and key in first:
                what = (
                    f"{key}: stored at {at:.3f}, first claimed after {first[key]:.3f}; "
                    f"{entry['who']} got nothing from {entry['begun']:.3f} to {entry['at']:.3f}"
                )
                found.append(Anomaly(kind="lost", what=what))
                break
    return found
