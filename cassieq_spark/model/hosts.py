"""Check the host names of requests to a server that asks for no key.

Any site may give its own name this machine's address (DNS rebinding): its pages then count as pages
of the server. Nobody else can get this machine's address, and ``localhost`` is always this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from cassieq_spark.errors import OptionInvalid

IPV6_HOST: Final = 64
"""The length of the prefix of an IPv6 network whose addresses all belong to one machine."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def known_hosts(listens_at: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names of a server, in lower case.

    Raises:
        OptionInvalid: One is not a host name.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise OptionInvalid(
                f"--host-name {name!r} is no name of a host. Give it without scheme, port and "
                "path, such as queues.example.com"
            )
    return frozenset(one.lower() for one in ("localhost", listens_at, *names))


def is_known(host: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` header has one of these names, or an IP address."""
    name = host_of(f"//{host}", has_port=False)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_of(url: str, *, has_port: bool = True) -> str:
    """Return the host of a URL in lower case, with its port if it has one; empty without a host."""
    try:
        found = urlsplit(url)
        return found.netloc.lower() if has_port else (found.hostname or "")
    except ValueError:
        return ""


def network_of(address: str) -> str:
    """The addresses that one machine has, as a name: all of a network of IPv6."""
    found = address_of(address)
    if found is None:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, IPV6_HOST), strict=False))
    return str(found)


def address_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a text as an address without its zone, as IPv4 if possible; None: it is not one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
