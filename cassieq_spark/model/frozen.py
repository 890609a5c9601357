"""Close two gaps of Python's frozen dataclasses: their dicts, and names that are not fields."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import FrozenInstanceError, fields
from typing import Any, NoReturn, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class FrozenDict(dict[K, V]):
    """A dict that nobody can change. It equals a dict of the same items, hashes and pickles."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this dict cannot be changed. Make another one of it: dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # a mutable dict has none
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy without the methods that are refused."""
        return FrozenDict, (dict(self),)


def freeze(value: object, *names: str) -> None:
    """Turn these fields of a frozen dataclass into `FrozenDict`; for ``__post_init__``."""
    for name in names:
        given = getattr(value, name)
        if type(given) is not FrozenDict:
            object.__setattr__(value, name, FrozenDict(given))


def frozen(kind: type[T]) -> type[T]:
    """Decorate a dataclass with ``frozen`` and ``slots``: any change raises `FrozenInstanceError`.

    For a name that is not a field, Python 3.11 to 3.13 raise ``TypeError: super(type, obj)`` there:
    they refer to the class as it was before it got its slots.
    """
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # it is a dataclass

    def refuse(self: object, name: str, *value: object) -> None:
        if type(self) is kind or name in names:
            verb = "assign to" if value else "delete"
            raise FrozenInstanceError(f"cannot {verb} field {name!r}")
        (object.__setattr__ if value else object.__delattr__)(self, name, *value)

    kind.__setattr__ = kind.__delattr__ = refuse  # type: ignore[method-assign]  # 3.11 has none that would do
    return kind
