"""Reads what a node logged since it was started: its last words, and which peers it sees up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.embedded.config import NodeConfig

#: Gossiper.java of Cassandra 5.0: the last of these about a peer is what this node believes of it.
_PEER_STATE = re.compile(r"InetAddress /(?P<address>[\d.]+):\d+ is now (?P<state>UP|DOWN)")

_CONSOLE_LINES = 25
_LAST_LINES = 12


class NodeLog:
    """The two log files of one node."""

    def __init__(self, config: NodeConfig) -> None:
        self._system = config.system_log
        self._console = config.console_log
        self._start = 0

    def mark_start(self) -> None:
        """Forget what earlier lives of the node logged."""
        self._start = self.position()

    def position(self) -> int:
        """The present end of the log, for ``peers(since=...)``."""
        return self._system.stat().st_size if self._system.is_file() else 0

    def peers(self, *, since: int = 0) -> dict[str, bool]:
        """Each peer's address, and whether it is up as this node last said after ``since``."""
        text = self._text(max(since, self._start))
        return {match["address"]: match["state"] == "UP" for match in _PEER_STATE.finditer(text)}

    def tail(self) -> str:
        """The best explanation of an end: the JVM's words, the last warnings, the last lines."""
        console = ""
        if self._console.is_file():
            console = self._console.read_text(encoding="utf-8", errors="replace")
        logged = self._text(self._start).splitlines()
        last = logged[-_LAST_LINES:]
        # A node that dies logs its shutdown at length after the reason.
        warnings = [
            line for line in logged[:-_LAST_LINES] if line.startswith(("WARN", "ERROR", "FATAL"))
        ]
        return "\n".join(console.splitlines()[-_CONSOLE_LINES:] + warnings[-_LAST_LINES:] + last)

    def _text(self, start: int) -> str:
        try:
            with self._system.open("rb") as log:
                log.seek(start if start <= self.position() else 0)  # it rolls at 20 MB
                return log.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
