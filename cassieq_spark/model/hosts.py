"""The names by which a server is known, where no key is asked.

Any site may give its own name this machine's address (DNS rebinding): its pages then count as those
of the server. An address cannot be given to anybody else, and ``localhost`` is always this machine.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cassieq_spark.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def known_hosts(listens_at: str, names: Iterable[str]) -> frozenset[str]:
    """The names of a server, in lower case.

    Raises:
        OptionInvalid: One is no name.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise OptionInvalid(
                f"--host-name {name!r} is no name of a host. Give it without scheme, port and "
                "path, such as queues.example.com"
            )
    return frozenset(one.lower() for one in ("localhost", listens_at, *names))


def is_known(host: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` header has one of these names, or an address."""
    name = host_of(f"//{host}", has_port=False)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_of(url: str, *, has_port: bool = True) -> str:
    """The host of a URL in lower case, with its port if there is one; empty if it has none."""
    try:
        found = urlsplit(url)
        return found.netloc.lower() if has_port else (found.hostname or "")
    except ValueError:
        return ""
