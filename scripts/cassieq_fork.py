"""Become a Python process of Spark: forked by the fork server of this Spark, or started here.

``cassieq-python`` runs this in an interpreter without ``site``, for some 10 ms. The other side, and
why there is one: ``cassieq_spark/spark/fork_server.py``. Whatever goes wrong here, the process is
started.
"""

import fcntl
import os
import signal
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

AT_START = (
    *("PYTHON", "LANG", "LC_", "LD_", "TZ", "MALLOC_", "GLIBC_TUNABLES", "OPENSSL_"),
    *("ARROW_", "NPY_", "PYSPARK_ENABLE_"),
)
"""Beginnings of variables that Python, the system or a package reads once, as a process starts."""

NOT_AT_START = (
    *("PYTHON_WORKER_", "PYTHON_UNIX_", "PYTHON_FAULTHANDLER_", "PYTHON_TRACEBACK_"),
    *("PYTHON_DAEMON_", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED"),
)
"""Beginnings of those among them that Spark reads later, or that are dealt with otherwise."""

LONGEST_PATH = 100
"""Of a socket, in bytes: the system takes a few more."""

OF_SERVER = {
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Numpy and Arrow begin threads at their import otherwise, and a fork has none of them. What a
server forks plans, and computes nothing. Spark asks for output without a buffer."""


def main(python: str, *arguments: str) -> None:
    """Run ``python -m MODULE ...`` for the process that started this one: Spark's driver.

    Environment: CASSIEQ_FORK_SERVER=off starts every process by itself. So does a limit on the
    memory of Spark's planning processes: a forked one has the imports of all of them.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # An interrupt ends this process, and does not start what it was to start.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        is_on = os.environ.get("CASSIEQ_FORK_SERVER", "on") != "off" and sys.platform == "linux"
        if is_on and "PYSPARK_PLANNER_MEMORY_MB" not in os.environ:
            _by_server(python, arguments[1:], os.getppid())
    finally:
        os.execv(python, [python, *arguments])  # noqa: S606 - it becomes what Spark asked for


def _by_server(python: str, words: tuple[str, ...], spark: int) -> None:
    """Let the server run it, and end as it ends; or begin a server for the next one."""
    folder = f"{os.environ.get('TMPDIR') or '/tmp'}/cassieq-fork-{os.getuid()}"  # noqa: S108 - private
    path = f"{folder}/{spark}-{zlib.crc32(_key(python, spark)):08x}"
    if os.path.isabs(folder) and len(os.fsencode(path)) <= LONGEST_PATH and _is_private(folder):  # noqa: PTH117 - pathlib takes longer than all else
        _ask(path, words)
        _begin(path, python, spark)


def _key(python: str, spark: int) -> bytes:
    """What a server has in common with all that it forks.

    Its modules are those of its path, and of this release. Process numbers and addresses are those
    of its containers: a folder may be shared with others.
    """
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "mnt")]  # noqa: PTH115 - as above
    with open(f"/proc/{spark}/stat", "rb") as of_spark:  # noqa: PTH123 - as above
        began = of_spark.read().rpartition(b")")[2].split()[19]
    release = os.stat(__file__).st_mtime_ns  # noqa: PTH116 - as above
    # Spark names the entries twice for a format that it has found by itself; Python reads one.
    entries = dict.fromkeys(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    at_start = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(AT_START) and not name.startswith(NOT_AT_START)
    )
    words = [python, *entries, _hash_seed(), str(release), *spaces, *at_start]
    return os.fsencode("\0".join(words)) + began


def _hash_seed() -> str:
    """Of the server: Spark says 0 for some of its processes, and nothing for others."""
    return os.environ.get("PYTHONHASHSEED") or "0"


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
            os.setpgid(0, 0)  # as a daemon does: signals to Spark's group are not for it
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
        code = b""
        try:
            server.settimeout(None)
            code = server.recv(1)
        finally:
            os._exit(code[0] if code else 1)


def _begin(path: str, python: str, spark: int) -> None:
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
            words = [python, "-m", SERVER, path, str(spark), str(lock)]
            env = {**os.environ, **OF_SERVER, "PYTHONHASHSEED": _hash_seed()}
            os.execve(python, words, env)  # noqa: S606 - as above
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
