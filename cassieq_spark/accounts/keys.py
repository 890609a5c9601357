"""Make ids and secrets of keys, in the form that SDKs of AWS take."""

from __future__ import annotations

import re
import secrets
import string
from typing import Final

from cassieq_spark.options.values import Secret

_PREFIX: Final = "CQAK"
_ID_SIGNS: Final = string.ascii_uppercase + "234567"
_SECRET_SIGNS: Final = string.ascii_letters + string.digits

KEY_ID: Final = re.compile(rf"{_PREFIX}[{_ID_SIGNS}]{{16}}")
"""Ids of another form are unknown without a look into any table."""


def new_key_id() -> str:
    """20 characters, 80 random bits."""
    return _PREFIX + "".join(secrets.choice(_ID_SIGNS) for _ in range(16))


def new_secret() -> Secret:
    """40 characters, 238 random bits; letters and digits, so that no shell or URL alters it."""
    return Secret("".join(secrets.choice(_SECRET_SIGNS) for _ in range(40)))
