"""Check what a node needs of a machine before it starts: folders, free space, free ports.

A folder that cannot be written, a disk that fills up half-way, or a port that is taken gives a less
helpful error.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from cassieq_spark.errors import DiskFull, EmbeddedFailed

_MEGABYTE = 10**6


@contextmanager
def writes(directory: Path, *, what: str = "data directory") -> Iterator[None]:
    """Name the directory in one line, where the system refuses to write there."""
    try:
        yield
    except OSError as error:
        raise EmbeddedFailed(
            f"the {what} {directory} cannot be written: {error.strerror or error}. Free "
            "space there, give this user the right to write, or name another directory"
        ) from error


def of_user(place: Callable[[str], Path], *, otherwise: str) -> Path:
    """Return a directory of the user's.

    Args:
        place: A function of platformdirs. Without a home it raises, or returns ``~/...`` (4.3).
        otherwise: What else to do where there is no home, for the error.

    Raises:
        EmbeddedFailed: The user has no home directory.
    """
    try:
        directory = place("cassieq")
    except RuntimeError:
        directory = Path("~")
    if directory.parts[0] == "~":
        raise EmbeddedFailed(
            f"user {os.getuid()} has no home directory: HOME is not set, and the system does not "
            f"know the user. Set HOME, or {otherwise}"
        )
    return directory


def temporary() -> Path:
    """The directory for temporary files.

    Raises:
        EmbeddedFailed: None can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise EmbeddedFailed(
            "an embedded node needs a directory for temporary files, and none can be written: "
            f"{error.strerror or error}. Set TMPDIR to one that can"
        ) from error


def check_space(directory: Path, need: int, *, what: str) -> None:
    """Refuse a directory whose disk has less free space than is needed.

    Args:
        directory: It may not exist yet.
        need: Bytes.
        what: What needs them, for the error.

    Raises:
        DiskFull: It names the directory, the free space and what is needed.
    """
    free = shutil.disk_usage(_existing(directory)).free
    if free < need:
        raise DiskFull(
            f"the disk of {directory} has {free // _MEGABYTE:,} MB free, but {what} needs "
            f"{-(-need // _MEGABYTE):,} MB. Free space there, or name another directory"
        )


def file_system(directory: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The name of the file system that a directory is on, such as ``ext4``; None: unknown.

    Args:
        directory: It may not exist yet.
        mounts: Linux's list of what is mounted; other systems have none.
    """
    number = _existing(directory).stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    try:
        lines = mounts.read_text("utf-8").splitlines()
    except OSError:
        return None
    # 36 35 98:0 / /data rw,noatime shared:1 - ext4 /dev/sda rw: any number of fields up to the "-".
    found = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == device]
    return found[0] if found else None


def _existing(directory: Path) -> Path:
    return next(one for one in (directory, *directory.parents) if one.exists())


def size_of(directory: Path) -> int:
    """The bytes of the files below a directory; files that go away meanwhile do not count."""
    size = 0
    for file in directory.rglob("*"):
        try:
            size += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return size


_PORTS_FILE = "ports.json"

#: Below the ephemeral ports of Linux (from 32768) and macOS (from 49152). A client that reconnects
#: while its node is down could otherwise be given the node's port as its own source port, connect
#: to itself, and keep the node from ever binding it again.
_FIRST_PORT = 12_000
_PORT_COUNT = 20_000

#: A node binds its ports seconds after they were chosen, and again after each restart. A chosen
#: port is therefore reserved against other processes by a locked file, for this process's life.
_reserved: dict[int, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of every node of a cluster: its nodes differ by address."""

    nodes: int
    native: int
    storage: int


def choose_ports(
    addresses: Sequence[str], *, native: int | None = None, kept_in: Path | None = None
) -> Ports:
    """Choose ports that are free on all addresses, or those that ``kept_in`` had before.

    A ring that changes its storage port would wait for its former self: peers are kept by address
    and port.

    Raises:
        EmbeddedFailed: ``kept_in`` holds a ring of another size, or no port is free.
    """
    file = None if kept_in is None else kept_in / _PORTS_FILE
    if file is not None and file.is_file():
        kept = Ports(**json.loads(file.read_text(encoding="utf-8")))
        if kept.nodes != len(addresses):
            raise EmbeddedFailed(
                f"{kept_in} holds a ring of {kept.nodes} nodes, but {len(addresses)} were asked "
                "for. Name another data directory, or ask for as many nodes"
            )
        return replace(kept, native=native or kept.native)
    ports = Ports(
        nodes=len(addresses),
        native=native or _free_port(addresses),
        storage=_free_port(addresses),
    )
    if file is not None:
        file.write_text(json.dumps(asdict(ports)), encoding="utf-8")
    return ports


def check_ports(address: str, ports: Sequence[int]) -> None:
    """Fail early with what to do, since the JVM's own error is a page of stack trace.

    Raises:
        EmbeddedFailed: The address or a port cannot be used.
    """
    for port in ports:
        problem = _bind_problem(address, port)
        if problem == errno.EADDRNOTAVAIL:
            raise EmbeddedFailed(
                f"{address} is not an address of this machine, and each node of a ring needs its "
                f"own. On macOS: sudo ifconfig lo0 alias {address}"
            )
        if problem is not None:
            raise EmbeddedFailed(
                f"port {port} of {address} cannot be used ({os.strerror(problem)}). Stop the "
                "server that uses it, or choose another port"
            )


@cache
def _candidates(pid: int) -> Iterator[int]:
    """Number what a process tries; two clusters of it are never given the same port.

    Neighbouring pids start far apart, so test runs side by side seldom ask for the same one.
    """
    return itertools.count(pid * 37)


def _free_port(addresses: Sequence[str]) -> int:
    for candidate in itertools.islice(_candidates(os.getpid()), _PORT_COUNT):
        port = _FIRST_PORT + candidate % _PORT_COUNT
        if any(_bind_problem(address, port) == errno.EADDRINUSE for address in addresses):
            continue
        if _reserve(port):
            return port
    raise EmbeddedFailed(f"no port is free from {_FIRST_PORT} to {_FIRST_PORT + _PORT_COUNT - 1}")


def _reserve(port: int) -> bool:
    reservations = temporary() / f"cassieq-ports-{os.getuid()}"
    with writes(reservations, what="directory of reserved ports"):
        reservations.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(reservations / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _reserved[port] = descriptor  # closed, and so given up, by the end of the process
    return True


def _bind_problem(address: str, port: int) -> int | None:
    with socket.socket() as probe:
        # The JVM does this too; without it a port in TIME_WAIT looks taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno
    return None
