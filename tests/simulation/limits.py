"""The internal limits that a seed draws, and the rare states that are counted.

Three to six clients with some dozens of messages never reach the real limits. A seed draws some of
them small, so that a tag is evicted, a row is crowded, and a bucket is closed for its size.
"""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping

    from tests.simulation.draws import Draws

PACKAGE: Final = "cassieq_spark"

LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "model.expiry.DELAYED_GROUPS_LIMIT": (4,),
    "model.expiry.GROUPS_BYTES": (32, 64),
    "model.expiry.GROUPS_PER_COUNT": (2,),
    "model.outcome.TAGGED_CLIENTS": (1, 2, 3),
    "model.row_limits.CLOSED_SETS": (1,),
    "model.row_limits.CROWDED_LEASES": (2, 8),
    "model.row_limits.LEASES_PER_CLAIM": (1, 2),
    "model.row_limits.OWNERS_BYTES": (20,),
    "model.row_limits.PREFERRED_BYTES": (64, 512),
    "model.row_limits.PREFERRED_LEASES": (1, 4),
    "model.row_limits.REASONS_BYTES": (16,),
    "model.row_limits.REDRIVEN_SETS": (1,),
    "model.row_limits.RUNS_PER_LEASE": (1, 2),
    "model.row_limits.TIMES_OF_DEATH": (2,),
    "model.rows.waiting.FOLD_AT_MOST": (1, 2),
    "model.rows.writer.ALONE": (1,),
    "model.sink_txn.PAST_RUNS": (1, 2),
    "model.sizes.BUCKET_BYTES": (100, 1_000),
    "model.sizes.CHUNK_BYTES": (40, 200),
    "model.sizes.CHUNK_MESSAGES": (1, 3),
    "model.sizes.PART_BYTES": (30, 60),
    "model.sizes.WRITTEN_TOGETHER": (1, 4),
    "queue.fetch.BODIES_AT_ONCE": (1,),
    "queue.fetch.BODIES_BYTES": (10,),
    "queue.fetch.OFFSETS_PER_READ": (1, 3),
    "queue.get.claim.BUCKETS_PER_CALL": (1, 2),
    "queue.get.claim.RUNS_PER_CALL": (1, 4),
    "queue.get.hints.KEPT_BUCKETS": (1, 4),
    "queue.get.hints.MANY_HINTS": (1,),
    "queue.get.hints.ROWS_TO_LEARN": (1, 4),
    "queue.get.open_buckets.FEW": (1, 100),
    "queue.get.reader.CLAIMS_PER_HINT": (1, 2),
    "queue.get.scan.FIRST_WINDOW": (1, 2),
    "queue.get.scan.LARGEST_WINDOW": (2, 4),
    "queue.get.scan.PEEKS": (1, 2),
    "queue.get.unsealed.SEALS_PER_CALL": (1, 2),
    "queue.waiting.QUEUES": (1,),
    "queue.put.producer.KEYS_AT_ONCE": (1, 2),
    "queue.put.producer.WRITES_IN_FLIGHT": (1,),
    "queue.put.together.KINDS": (1,),
    "queue.put.together.LANES": (1,),
    "queue.put.together.MOST_MESSAGES": (1, 3),
    "queue.roll_forward.TOGETHER": (1, 2),
    "repair.cleanup.WINDOW": (1, 4),
    "repair.heal.WINDOW": (1, 4),
    "repair.verify.WINDOW": (1, 4),
    "store.tables.messages.UNREAD_BYTES": (0, 100),
    "store.tables.sinks.LIST_IN_ROW_BYTES": (20,),
}
"""Each limit, and the values that a seed may give it."""

_GROUPS: Final = frozenset({"model.expiry.DELAYED_GROUPS_LIMIT", "model.expiry.GROUPS_PER_COUNT"})

NONE_SHARE: Final = 0.3
"""The share of the seeds that have the real limits."""

EACH_SHARE: Final = 0.3
"""The share of the limits that another seed changes."""


def _always(_: tuple[Any, ...], __: Any) -> bool:
    return True


def _is_some(_: tuple[Any, ...], result: Any) -> bool:
    return bool(result)


RARE: Final[Mapping[str, tuple[str, Any]]] = {
    "tag evicted": (
        "model.outcome.Tags.with_tag",
        lambda given, found: found.evicted > given[0].evicted,
    ),
    "row not preferred": ("queue.get.choice.is_crowded", _is_some),
    "row crowded": ("model.lease.is_crowded", _is_some),
    "bucket voided": ("model.bucket.voided", _always),
    "bucket purged": ("model.bucket.purged", _always),
    "claim given back": ("queue.get.claim.give_back", lambda given, _: bool(given[0])),
    "lease of an unknown claim given back": ("model.rows.writer.given_back", _always),
    "fate of an unknown CAS": ("model.rows.events.fate_of", _always),
    "two intents in one CAS": ("model.rows.intents.fold", lambda _, found: len(found.effects) > 1),
    "bucket away": ("queue.get.scan.Scanner.pass_over", _always),
    "owner not named": (
        "model.bucket.name_of_holder",
        lambda given, found: found != given[1],
    ),
    "due times merged": (
        "model.expiry._merged",
        lambda given, found: len(found) < len(given[0]),
    ),
    "gap closed": ("repair.cleanup.close_gaps", _is_some),
    "transaction aborted": ("repair.transactions.abort_if_silent", _is_some),
    "rolled forward": ("queue.roll_forward.roll_forward", _always),
    "bucket dropped": ("repair.cleanup.drop", _is_some),
    "dead set moved": ("repair.dead.move", _is_some),
    "put that failed after a part": ("queue.put.results.after_a_part", _always),
    "duplicate key": ("queue.put.dedup.happened", _is_some),
}
"""Each rare state: the function that meets it, and whether a call of it has met it."""


def drawn(draws: Draws) -> dict[str, int]:
    """Draw the limits of a seed."""
    if draws.random() < NONE_SHARE:
        return {}
    found = {
        name: draws.choice(values) for name, values in LIMITS.items() if draws.random() < EACH_SHARE
    }
    if _GROUPS & found.keys():  # each has an effect only with the other
        found |= {name: LIMITS[name][0] for name in sorted(_GROUPS)}
    return found


@contextmanager
def limited(limits: Mapping[str, float]) -> Iterator[None]:
    """Give internal limits other values, in each module that has imported them."""
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(_replaced(name, lambda _, value=value: value))
        yield


@contextmanager
def counted(
    seen: Counter[str], on_event: Callable[[str, Mapping[str, Any]], object]
) -> Iterator[None]:
    """Count the rare states, and what the package logs; each is also told."""

    def log(_: Any, name: str, /, **fields: Any) -> None:
        seen[name] += 1
        on_event(name, fields)

    with ExitStack() as stack:
        stack.enter_context(_replaced("log.event", lambda _: log))
        for state, (name, has_met) in RARE.items():

            def count(call: Callable[..., Any], state: str = state, has_met: Any = has_met) -> Any:
                def note() -> None:
                    seen[state] += 1
                    on_event(state, {})

                return _counting(call, note, has_met)

            stack.enter_context(_replaced(name, count))
        yield


def _counting(call: Callable[..., Any], note: Callable[[], None], has_met: Any) -> Any:
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def later(*args: Any, **kwargs: Any) -> Any:
            found = await call(*args, **kwargs)
            if has_met(args, found):
                note()
            return found

        return later

    @functools.wraps(call)
    def now(*args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        if has_met(args, found):
            note()
        return found

    return now


@contextmanager
def _replaced(name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Change what a name of the package stands for, wherever it was imported."""
    home, _, rest = _split(f"{PACKAGE}.{name}")
    *path, last = rest.split(".")
    owner = functools.reduce(getattr, path, home)
    old = vars(owner)[last]
    new = change(old)
    is_of_module = owner is home
    for one in _having(last, old) if is_of_module else [owner]:
        setattr(one, last, new)
    try:
        yield
    finally:
        # A module that was imported meanwhile has the new one, too.
        for one in _having(last, new) if is_of_module else [owner]:
            setattr(one, last, old)


def _having(name: str, value: Any) -> list[Any]:
    """Return the modules of the package in which this name has this value."""
    return [
        module
        for title, module in sorted(sys.modules.items())
        if title.startswith(PACKAGE) and vars(module).get(name) is value
    ]


@functools.cache
def _split(name: str) -> tuple[Any, str, str]:
    """Split a dotted name into its module, that one's name and the rest."""
    title = name
    while True:
        title, _, _ = title.rpartition(".")
        try:
            return import_module(title), title, name.removeprefix(f"{title}.")
        except ModuleNotFoundError:
            continue
