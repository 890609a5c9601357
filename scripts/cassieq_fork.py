"""Become a Python process of Spark: forked by the fork server of this Spark, or started here.

``cassieq-python`` runs this in an interpreter without ``site``, for some 10 ms. The other side, and
why there is one: ``cassieq_spark/spark/fork_server.py``. Whatever goes wrong here, the process is
started.
"""

import fcntl
import os
import socket
import stat
import struct
import sys
import time
import zlib

SERVER = "cassieq_spark.spark.fork_server"
ANSWER_S = 1.0
"""A server that has not forked by then is stopped, or the machine is busy. Spark waits for ten
seconds, and the start takes one to three of them then."""

LONGEST_PATH = 100
"""Of a socket, in bytes: the system takes a few more."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Of a server: numpy and Arrow begin threads at their import otherwise, and a fork has none of
them. What it forks plans, and computes nothing."""


def main(python: str, *arguments: str) -> None:
    """Run ``python -m MODULE ...`` for the process that started this one: Spark's driver.

    Environment: CASSIEQ_FORK_SERVER=off starts every process by itself.
    """
    try:
        if os.environ.get("CASSIEQ_FORK_SERVER", "on") != "off" and sys.platform == "linux":
            _by_server(python, arguments[1:], os.getppid())
    finally:
        os.execv(python, [python, *arguments])  # noqa: S606 - it becomes what Spark asked for


def _by_server(python: str, words: tuple[str, ...], spark: int) -> None:
    """Let the server run it, and end as it ends; or begin a server for the next one."""
    folder = f"{os.environ.get('TMPDIR') or '/tmp'}/cassieq-fork-{os.getuid()}"  # noqa: S108 - private
    path = f"{folder}/{spark}-{zlib.crc32(_key(python, spark)):08x}"
    if os.path.isabs(folder) and len(os.fsencode(path)) <= LONGEST_PATH and _is_private(folder):  # noqa: PTH117 - pathlib takes longer than all else
        _ask(path, words)
        _begin(path, python, words[0], spark)


def _key(python: str, spark: int) -> bytes:
    """What a server has in common with all that it forks.

    Its modules are those of its path, and of this release. Process numbers and addresses are those
    of its containers: a folder may be shared with others.
    """
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "mnt")]  # noqa: PTH115 - as above
    with open(f"/proc/{spark}/stat", "rb") as of_spark:  # noqa: PTH123 - as above
        began = of_spark.read().rpartition(b")")[2].split()[19]
    release = os.stat(__file__).st_mtime_ns  # noqa: PTH116 - as above
    words = [python, os.environ.get("PYTHONPATH", ""), str(release), *spaces]
    return os.fsencode("\0".join(words)) + began


def _ask(path: str, words: tuple[str, ...]) -> None:
    """Let the server run it, and end as it ends; return if it does not."""
    with socket.socket(socket.AF_UNIX) as server:
        until = time.monotonic() + ANSWER_S
        server.settimeout(ANSWER_S)
        try:
            server.connect(path)
            peer = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", peer)
            if not pid or uid != os.getuid():
                return
            env = [name + b"=" + value for name, value in os.environb.items()]
            sent = [str(len(words)), *words]
            asked = b"\0".join([os.getcwdb(), *map(os.fsencode, sent), *env])  # noqa: PTH109 - as above
            socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(asked)
            server.settimeout(max(0.01, until - time.monotonic()))
            if not server.recv(1):
                return
            # Without this it ends: it never runs beside the one that is started otherwise.
            server.sendall(b"+")
        except OSError:
            return
        # It sees the end of this socket when this process is killed, and ends, too.
        server.settimeout(None)
        try:
            code = server.recv(1)
        except OSError:
            code = b""
        os._exit(code[0] if code else 1)


def _begin(path: str, python: str, module: str, spark: int) -> None:
    """Begin a server for the next ones, unless there is one, or one has failed.

    It holds a lock as long as it lives. One that fails says why in the file of the lock. This
    process loses its own hold when it becomes another.

    Raises:
        OSError: There is a server, or none can be begun.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.read(lock, 1):
        return
    # Twice, so that it is no child of what this process becomes, which would never wait for it.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            os.set_inheritable(lock, True)
            words = [python, "-m", SERVER, path, str(spark), module, str(lock)]
            os.execve(python, words, {**os.environ, **ONE_THREAD})  # noqa: S606 - as above
    finally:
        os._exit(0)


def _is_private(folder: str) -> bool:
    """Whether nobody else can put a socket there."""
    if not os.path.lexists(folder):
        os.mkdir(folder, 0o700)  # noqa: PTH102 - as above
    found = os.lstat(folder)
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_mine and not found.st_mode & 0o077


if __name__ == "__main__":
    main(*sys.argv[1:])
