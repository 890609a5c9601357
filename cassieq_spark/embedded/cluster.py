"""Run a real Cassandra for tests and demos: one node, or a ring on 127.0.0.1, 127.0.0.2, ..."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from cassieq_spark.embedded import machine
from cassieq_spark.embedded.config import DATACENTER, NodeConfig
from cassieq_spark.embedded.node import Installation, Node, boot, stop
from cassieq_spark.embedded.software import CASSANDRA, find_java, jars_of
from cassieq_spark.errors import EmbeddedFailed, OptionInvalid

MAX_NODES = 9


class EmbeddedCassandra:
    """Apache Cassandra 5.0 in JVMs of its own, which end with this process however it ends.

    As a context manager it starts on entry and stops on exit. A node boots in 5 to 8 s and takes
    about 1.5 GB of memory; a ring of three boots in ~20 s on two cores. A write is fsynced before
    it is acknowledged, so ``kill()`` loses none.

    Args:
        nodes: 1 to 9; on macOS the further loopback addresses must be set up by hand.
        heap: The heap of each JVM, as in ``-Xmx``. Default: ``1g`` for one node, ``768m`` in a
            ring.
        data_dir: Kept, with its ports, for the next cluster on it. Default: a temporary directory,
            removed by ``stop()`` or when this process dies.
        port: The port of the native protocol. Default: a free one.
        datacenters: Names; the nodes are in them by turns. Default: one, ``datacenter1``.
        settings: Entries of cassandra.yaml that win over the generated ones, e.g. short timeouts.
        environment: Variables of single nodes' JVMs, by the number of the node, beside those of
            this process: ``{3: {"LD_PRELOAD": ...}}`` gives the third one another clock.
        optimize: Whether the JVMs compile code a second time, and well. It pays where nodes work
            for longer than some minutes; until then it doubles their CPU time.
        start_timeout_s: The longest time for a node's boot, and then for the ring to see it.

    Attributes:
        nodes: Each node, with the same verbs; empty before the first ``start()``.
        datacenter: The name of the only data centre, or of the first, where node 1 is.
        data_dir: The directory where the nodes keep everything; None before the first ``start()``.

    Raises:
        OptionInvalid: ``nodes`` is out of range or too few for the data centres; or
            ``environment`` names another node.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        heap: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        datacenters: Sequence[str] = (DATACENTER,),
        settings: Mapping[str, object] | None = None,
        environment: Mapping[int, Mapping[str, str]] | None = None,
        optimize: bool = False,
        start_timeout_s: float = 180.0,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise OptionInvalid(
                f"nodes={nodes!r}: an embedded cluster has 1 to {MAX_NODES} nodes, one for each "
                f"address from 127.0.0.1 to 127.0.0.{MAX_NODES}"
            )
        if not 1 <= len(set(datacenters)) == len(datacenters) <= nodes:
            raise OptionInvalid(
                f"datacenters={datacenters!r}: name each data centre once, and no more data "
                f"centres than there are nodes (nodes={nodes!r})"
            )
        if len(datacenters) > 1 and DATACENTER in datacenters:
            raise OptionInvalid(
                f"datacenters={datacenters!r}: only a cluster with one data centre may call it "
                f"{DATACENTER}. Choose other names"
            )
        self._environment = dict(environment or {})
        if not self._environment.keys() <= set(range(1, nodes + 1)):
            raise OptionInvalid(
                f"environment names nodes {sorted(self._environment)}, but the cluster has nodes "
                f"1 to {nodes}"
            )
        self.datacenter = datacenters[0]
        self._datacenters = tuple(datacenters)
        self._addresses = tuple(f"127.0.0.{number}" for number in range(1, nodes + 1))
        self._heap = heap or ("1g" if nodes == 1 else "768m")
        self._kept_dir = None if data_dir is None else Path(data_dir).absolute()
        self._port = port
        self._settings = dict(settings or {})
        self._optimize = optimize
        self._start_timeout_s = start_timeout_s
        self.data_dir: Path | None = None
        self.nodes: tuple[Node, ...] = ()

    @property
    def contact_points(self) -> str:
        """The nodes, ``host:port,host:port``, as ``connect()`` and the Spark options take them.

        Raises:
            EmbeddedFailed: It was never started, so it has no ports.
        """
        if not self.nodes:
            raise EmbeddedFailed(
                "an embedded Cassandra has no contact points before it is started. Call start(), "
                "or use it as a context manager"
            )
        return ",".join(node.contact_point for node in self.nodes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every node that is down; all are up, and seen up by all, when this returns.

        Raises:
            JavaNotFound: No Java 17 was found.
            EmbeddedFailed: The jars could not be fetched, or a node did not start; with the end
                of its log. No process that this call started is left behind.
        """
        if not self.nodes:
            self.nodes = self._create_nodes()
        try:
            boot(node for node in self.nodes if not node.is_running)
        except BaseException:
            if not any(node.is_running for node in self.nodes):
                self._remove_temporary()
            raise

    def stop(self) -> None:
        """Stop every node gracefully; the temporary directory goes, a given one stays.

        Raises:
            EmbeddedFailed: A node had to be killed. All are down even so.
        """
        try:
            stop(self.nodes)
        finally:
            self._remove_temporary()

    def kill(self) -> None:
        """SIGKILL every node; the data stays, for ``start()``."""
        for node in self.nodes:
            node.kill()

    def restart(self) -> None:
        """Stop the nodes that run, then start all on the same data and ports."""
        stop(self.nodes)
        self.start()

    def pause(self) -> None:
        """SIGSTOP every node."""
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        """SIGCONT every node."""
        for node in self.nodes:
            node.resume()

    def _create_nodes(self) -> tuple[Node, ...]:
        java = find_java()
        installation = Installation(
            java=java,
            jars=jars_of(CASSANDRA, java),
            is_temporary=self._kept_dir is None,
            start_timeout_s=self._start_timeout_s,
        )
        kept = self._kept_dir
        with machine.writes(kept or machine.temporary()):
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
            ports = machine.choose_ports(self._addresses, native=self._port, kept_in=kept)
            root = kept or Path(tempfile.mkdtemp(prefix="cassieq-cassandra-"))
        self.data_dir = root
        configs = [
            NodeConfig(
                directory=root / f"node{index + 1}",
                index=index,
                addresses=self._addresses,
                native_port=ports.native,
                storage_port=ports.storage,
                heap=self._heap,
                settings=self._settings,
                datacenter=self._datacenters[index % len(self._datacenters)],
                environment=self._environment.get(index + 1, {}),
                optimize=self._optimize,
            )
            for index in range(len(self._addresses))
        ]
        return tuple(
            Node(config, installation, partial(self._neighbours, config.address))
            for config in configs
        )

    def _neighbours(self, address: str) -> Iterable[Node]:
        return (node for node in self.nodes if node.address != address)

    def _remove_temporary(self) -> None:
        if self._kept_dir is None and self.data_dir is not None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
