"""Become a Python process of Spark: forked by the fork server of this Spark, or started here.

``cassieq-python`` runs this in an interpreter without ``site``, for some 10 ms. The other side, and
why there is one: ``cassieq_spark/spark/fork_server.py``.
"""

import os
import socket
import stat
import sys
import zlib

SERVER = "cassieq_spark.spark.fork_server"
ANSWER_S = 2.0
"""A server that has not forked by then is stopped or ill. Spark waits for ten seconds."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Of a server, as numpy and Arrow begin threads otherwise. A child has its own settings, and no
threads of before."""

LONGEST_PATH = 100
"""Of a socket: the system takes a few bytes more."""


def main(python: str, *arguments: str) -> None:
    """Run ``python -m MODULE`` for the process that started this one: Spark's driver.

    Environment: CASSIEQ_FORK_SERVER=off starts every process by itself.
    """
    module, spark = arguments[1], os.getppid()
    folder = f"{os.environ.get('TMPDIR', '/tmp')}/cassieq-fork-{os.getuid()}"  # noqa: S108 - private
    # Its modules are those of the path that it was started with.
    words = "\0".join([python, module, os.environ.get("PYTHONPATH", "")])
    path = f"{folder}/{spark}-{zlib.crc32(os.fsencode(words))}"
    is_on = os.environ.get("CASSIEQ_FORK_SERVER", "on") != "off" and sys.platform == "linux"
    if is_on and len(path) <= LONGEST_PATH and _is_private(folder):
        _ask(path)
        _begin(python, "-m", SERVER, path, str(spark), module)
    os.execv(python, [python, *arguments])  # noqa: S606 - it becomes what Spark asked for


def _ask(path: str) -> None:
    """Let the server run it, and end as it ends; return if it does not."""
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(ANSWER_S)
        try:
            server.connect(path)
            env = [name + b"=" + value for name, value in os.environb.items()]
            asked = b"\0".join([os.getcwdb(), *env])  # noqa: PTH109 - as below
            socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(asked)
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


def _begin(python: str, *arguments: str) -> None:
    """Begin a server for the next ones; it ends at once if there is one already."""
    null = [(os.POSIX_SPAWN_OPEN, to, os.devnull, os.O_RDWR, 0) for to in (0, 1, 2)]
    env = {**os.environ, **ONE_THREAD}
    try:
        os.posix_spawn(python, [python, *arguments], env, file_actions=null, setsid=True)
    except OSError:
        return


def _is_private(folder: str) -> bool:
    """Whether nobody else can put a socket there."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - pathlib takes longer than all else
        found = os.lstat(folder)
    except OSError:
        return False
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_mine and not found.st_mode & 0o077


if __name__ == "__main__":
    main(*sys.argv[1:])
