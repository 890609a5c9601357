"""Read JSON that a client has written, with as many values as a request may have."""

from __future__ import annotations

import json
from typing import Any, Final

from cassieq_spark.model.dense import has_more_values

FIELDS: Final = 2_000
"""The most fields of a form, and values in JSON: ten entries with all their attributes have
fewer."""


class TooManyValues(ValueError):
    """JSON has so many values that parsing them would keep others waiting."""


def from_json(text: str | bytes) -> Any:
    """The value of a text.

    Raises:
        TooManyValues: It has more values than any request needs.
        ValueError: It is not JSON.
    """
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if has_more_values(raw, FIELDS):
        raise TooManyValues
    try:
        # Of UTF-8 only: bytes of another encoding, which `json` would find out, count otherwise.
        return json.loads(raw.decode("utf-8-sig", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
