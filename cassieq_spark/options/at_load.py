"""Check what ``load()`` is given, when Spark has not said yet whether it is a stream or a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.options.option import READING, Scope
from cassieq_spark.options.parse import OPTIONS, parse_read, parse_source, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

_EITHER: Final = "the cassieq source or the cassieq batch reader"


def check_load(given: Mapping[str, Any]) -> None:
    """Refuse options that fit neither a stream nor a batch.

    What fits one of the two is checked again when Spark makes its reader.

    Raises:
        OptionUnknown, OptionInvalid: Names the option, its value, and what is allowed.
    """
    refuse_path(given)
    names = {name.lower() for name in given}
    known = {one.name.lower(): one for one in OPTIONS if one.scopes & READING}
    ignored = {one.name.lower() for one in OPTIONS if Scope.SPARK in one.scopes}
    for name in given:
        if name.lower() not in known.keys() | ignored:
            raise unknown(name, _EITHER, known)
    refused: dict[Scope, UsageError] = {}
    for scope, parse in ((Scope.SOURCE, parse_source), (Scope.READ, parse_read)):
        try:
            parse(given)
        except UsageError as error:
            refused[scope] = error
        else:
            return
    own = {
        scope: sum(known[name].scopes & READING == {scope} for name in names & known.keys())
        for scope in refused
    }
    raise refused[max(own, key=own.__getitem__)]


def refuse_path(given: Mapping[str, Any]) -> None:
    """Refuse the argument of ``load``, ``save`` and ``start``: a queue has no path.

    Raises:
        OptionInvalid: It is there.
    """
    for name, value in given.items():
        if name.lower() in ("path", "paths"):
            raise OptionInvalid(
                f"option {name.lower()!r} is {value!r}, but a path means nothing here. It is the "
                "argument of load, save or start: leave it out, and name the queue with option "
                "'queue'"
            )
