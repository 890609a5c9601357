"""Apache Kafka as a peer: one broker in KRaft mode, and Spark's own connector for it.

The jars are fetched by their Maven coordinates, as Cassandra's are. Spark's connector is taken for
the release of Spark whose connector is published whole (`SPARK_VERSION`), so that side's PySpark
lives in a virtual environment of its own. `fetch` gets all of it, once per user.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from base64 import urlsafe_b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from bench.peers.peer import ADDRESS, PeerMissing, free_port, running
from cassieq_spark.embedded.software import Program, find_java, jars_of
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA: Final = Program(
    title="Kafka",
    organisation="org.apache.kafka",
    module="kafka_2.13",
    version="4.1.0",
    megabytes=43,
)
SPARK_VERSION: Final = "4.0.0"
CONNECTOR: Final = Program(
    title="Spark-Kafka",
    organisation="org.apache.spark",
    module="spark-sql-kafka-0-10_2.13",
    version=SPARK_VERSION,
    megabytes=67,
)
PACKAGES: Final = (f"pyspark=={SPARK_VERSION}", "confluent-kafka>=2.11,<3")
"""Spark, and the client by which a program puts one message, creates topics and counts."""

HEAP: Final = "1g"
PARTITIONS: Final = 2
"""One for each core: a Kafka source has as many tasks as there are partitions."""


# What bin/kafka-run-class.sh passes.
_JVM: Final = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)

# config/server.properties as Kafka ships it, but for addresses, the directory and the partitions.
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{address}:{controller}
listeners=PLAINTEXT://{address}:{port},CONTROLLER://{address}:{controller}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://{address}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={folder}/log
num.partitions={partitions}
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where everything is that a broker and its Spark need."""

    java_home: Path
    broker_jars: Path
    connector: tuple[Path, ...]
    python: Path

    @property
    def java(self) -> Path:
        """The program."""
        return self.java_home / "bin" / "java"


def fetch() -> Installation:
    """Fetch what is missing, which takes some minutes the first time.

    Raises:
        PeerMissing: Something of it cannot be had.
    """
    try:
        java = find_java()
        python = _environment()
        ships = next(python.parents[1].glob("lib/python*/site-packages/pyspark/jars"))
        connector = jars_of(CONNECTOR, java, on_fetch=_tell)
        return Installation(
            java_home=java.home,
            broker_jars=jars_of(KAFKA, java, on_fetch=_tell),
            # What Spark has itself, it needs no second time: Hadoop's client is most of it.
            connector=tuple(
                jar for jar in sorted(connector.glob("*.jar")) if not (ships / jar.name).exists()
            ),
            python=python,
        )
    except CassieqError as error:
        why = " ".join(str(error).partition(" Check that")[0].split())
        raise PeerMissing(f"Kafka {KAFKA.version} cannot be had: {why}") from error


def _environment() -> Path:
    """The Python of a virtual environment with `PACKAGES`; it appears whole or not at all."""
    root = platformdirs.user_cache_path("cassieq")
    target = root / f"spark-{SPARK_VERSION}-for-kafka"
    complete = target / ".installed"
    python = target / "bin" / "python"
    if complete.is_file() and complete.read_text(encoding="utf-8").split() == list(PACKAGES):
        return python
    _tell(f"Installing {' and '.join(PACKAGES)} into {target} (400 MB, once)")
    shutil.rmtree(target, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(target)], [*pip, "--no-input", *PACKAGES]):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise PeerMissing(
                f"PySpark {SPARK_VERSION} with a Kafka client cannot be had: {' '.join(said[-1:])}"
            )
    complete.write_text("\n".join(PACKAGES), encoding="utf-8")
    return python


@contextmanager
def broker(installed: Installation) -> Iterator[str]:
    """A broker that is its own controller, in one JVM, with its log in a temporary folder.

    Yields:
        Its address.

    Raises:
        PeerMissing: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="cassieq-bench-kafka-") as name:
        folder = Path(name) / "broker"
        folder.mkdir()
        port, properties = free_port(), folder / "server.properties"
        text = _PROPERTIES.format(
            address=ADDRESS,
            port=port,
            controller=free_port(),
            folder=folder,
            partitions=PARTITIONS,
        )
        properties.write_text(text, encoding="utf-8")
        _format(installed, properties)
        command = _java(installed, "kafka.Kafka", str(properties), heap=HEAP)
        with running(command, folder=folder, is_up=lambda: _listens(port)):
            yield f"{ADDRESS}:{port}"


def _java(installed: Installation, *words: str, heap: str) -> list[str]:
    jars = f"{installed.broker_jars}/*"
    return [str(installed.java), f"-Xms{heap}", f"-Xmx{heap}", *_JVM, "-cp", jars, *words]


def _format(installed: Installation, properties: Path) -> None:
    """Make the folder a cluster's, as every operator does before the first start."""
    cluster = urlsafe_b64encode(new_uuid().bytes).decode("ascii").rstrip("=")
    # One word: an id may begin with "-".
    words = (f"--cluster-id={cluster}", "--config", str(properties))
    tool = ("kafka.tools.StorageTool", "format", *words)
    done = subprocess.run(
        _java(installed, *tool, heap="128m"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        raise PeerMissing(f"Kafka's folder cannot be formatted: {said[-500:]}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection((ADDRESS, port), timeout=1).close()
    except OSError:
        return False
    return True


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> int:
    """Fetch everything, so that a benchmark begins at once."""
    try:
        fetch()
    except PeerMissing as error:
        _tell(f"Kafka is left out: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
