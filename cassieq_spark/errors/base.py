"""`CassieqError` is the base of all errors."""

from __future__ import annotations

from copy import copy
from typing import ClassVar, TypeVar


class CassieqError(Exception):
    """Base class of all errors of this package.

    Attributes:
        code: Stable name in lower snake case.
        retriable: Whether the same call may succeed later without anybody doing anything.
        meaning: One sentence for the reference.
        remedy: One sentence for the reference.
    """

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    meaning: ClassVar[str] = ""
    remedy: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Begin with the code, so that it survives as text."""
        return f"[cassieq:{self.code}] {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message by position, the data as state: keyword-only data would fail."""
        return type(self), (self.message,), self.__dict__.copy()


E = TypeVar("E", bound=Exception)


def copied(error: E) -> E:
    """Copy an error to raise it once more, as other callers raise the original at the same time."""
    found = copy(error).with_traceback(error.__traceback__)
    found.__cause__ = error.__cause__
    return found
