"""Say in the words of a shell what an error says to a Python program: commands and flags.

Errors of the library name calls (``client.create_queue('orders')``), options (``option 'keyspace'
of connect()``) and arguments (``delay is 'x'``). Whoever works in a shell types none of these.
"""

from __future__ import annotations

import re
from typing import Final

from cassieq_spark.cli.flags import SHELL_NAMES

_CALLS: Final = (
    (r"Open it with client\.queue\('([\w./-]+)'\)", r"Show it with: cassieq queue show \1"),
    (r"open it again with client\.queue\(\), or restart the query", "run the command again"),
    (
        r"client\.alter_queue\('([\w./-]+)', dead_letter_queue=\.\.\.\)",
        r"cassieq queue alter \1 --dead-letter-queue QUEUE",
    ),
    (r"client\.alter_queue\('([\w./-]+)'\)", r"cassieq queue alter \1"),
    (
        r"client\.alter_queue\(name, dedup_window=3600\)",
        "cassieq queue alter QUEUE --dedup-window 1h",
    ),
    (r"client\.create_queue\('([\w./-]+)'\)", r"cassieq queue create \1"),
    (
        r"client\.bootstrap\(replication=\.\.\.\)",
        "cassieq bootstrap --replication DATACENTER=N",
    ),
    (r"client\.bootstrap\(\)", "cassieq bootstrap"),
    (r"client\.queues\(\)", "cassieq queue list"),
    (r"create a queue with priorities=<their number>", "create a queue with --priorities N"),
    (r"with force=True", "with --force"),
    (r"without if_(empty|unused)", r"without --if-\1"),
    (r"another dead_letter_queue, or", "another --dead-letter-queue, or"),
    (r"client\.verify\(\)", "cassieq repair --verify"),
    (r"Choose another dead_letter_queue", "Choose another --dead-letter-queue"),
    (r"name a queue with 'to'", "name a queue with --to"),
    (
        r"Set options 'username' and 'password'",
        "Set --username, and the password by the variable CASSIEQ_PASSWORD",
    ),
    (r"set 'sslVerifyHostname' to false", "give --no-ssl-verify-hostname"),
    (r"seconds or timedelta", "seconds, or text such as '30s' or '5m'"),
    (r"seconds, timedelta, or text", "seconds, or text"),
)

_ARGUMENTS: Final = {
    "consumer": "--consumer",
    "dedup_key": "--dedup-key",
    "delay": "--delay",
    "max_messages": "--max",
    "group": "--group",
    "key": "--key",
    "message_id": "--message-id",
    "priority": "--priority",
    "priority_at_least": "--priority-at-least",
    "tag": "--tag",
    "to": "--to",
    "ttl": "--ttl",
    "visibility_timeout": "--visibility-timeout",
    "wait": "--wait",
}
"""Arguments that commands pass on as they were given. An error about one begins with its name."""

_FIRST: Final = re.compile(rf"^(\[cassieq:\w+\] )({'|'.join(_ARGUMENTS)}) is ")
_OPTION: Final = re.compile(
    r"option '(\w+)'(?: of (?:connect|create_queue)\(\))?"
    r"|(?<=but )'(\w+)'(?= is not set)"
    r"|'(ssl\w+)'"
)


def in_shell(text: str) -> str:
    """Replace calls, options and arguments of Python by the commands and flags that do the same."""
    for python, shell in _CALLS:
        text = re.sub(python, shell, text)
    text = _FIRST.sub(lambda found: f"{found[1]}{_ARGUMENTS[found[2]]} is ", text)
    return _OPTION.sub(
        lambda found: SHELL_NAMES.get(found[1] or found[2] or found[3], found[0]), text
    )
