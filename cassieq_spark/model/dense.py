"""Check by its bytes alone whether a JSON text has more values than a server is willing to parse.

A parser makes an object of each value and of each name, and keeps it. That takes a hundred times as
long as a look at the bytes, so a text of very many tiny values takes long for its length.

An object or list of n members has n - 1 commas and one bracket. So commas and opening brackets,
outside of strings, count all values but the outermost one. For a text that is not JSON the count
means nothing: a parser stops where it finds that out.
"""

from __future__ import annotations


def has_more_values(text: bytes, most: int) -> bool:
    """Whether a JSON text has more than ``most`` values within its outermost one."""
    if _marks(text) <= most:
        return False  # the usual case, though marks within strings were counted, too
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    # A value has two strings at most, its name and itself, with two marks each.
    parts = plain.split(b'"', 4 * (most + 1))
    return len(parts) > 4 * (most + 1) or _marks(b"".join(parts[::2])) > most


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
