"""The engine below its API, on a simulated Cassandra; with ``--real``, on the real node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.leaps import LEAPS
from tests.fixtures.places import Simulated, on_the_node
from tests.fixtures.queues import door, keyspace, open_door, passing_time, still_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    import cassieq_spark as cassieq
    from tests.fixtures.places import Places

__all__ = ["door", "keyspace", "open_door", "passing_time", "still_time"]


@pytest.fixture(scope="session", autouse=True)
def _node(request: pytest.FixtureRequest) -> None:
    """Start the node before the first test: what a test starts must not outlive it."""
    if request.config.getoption("real"):
        request.getfixturevalue("cassandra")


@pytest.fixture(autouse=True)
def _leaps(request: pytest.FixtureRequest) -> Iterator[None]:
    """On the simulated Cassandra no test waits in real time."""
    if request.config.getoption("real"):
        yield
        return
    with LEAPS.on():
        yield


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    """Where a test's tables are: the same for all tests of a run."""
    if request.config.getoption("real"):
        yield from on_the_node(request)
        return
    simulated = Simulated()
    yield simulated
    simulated.close()


@pytest.fixture
def client(places: Places, keyspace: str) -> cassieq.Client:
    """A client of the module's keyspace."""
    return places.connect(keyspace)
