"""The command ``cassieq`` manages queues and a local Cassandra from a terminal."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command.

    Until a command begins, Ctrl-C ends the process by the signal itself: nothing is under way, and
    an exception out of half an import would be shown with its traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cassieq_spark.cli.app import main as run  # noqa: PLC0415 - it takes most of a second

    run()
