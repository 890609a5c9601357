"""Find the function that ``module:function`` names, and check it before any message is claimed."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import FunctionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_TEXT: Final = 500
"""How much of an error's text goes into an error or an event of ours."""

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_name(name: str) -> str:
    """Return the name if it has the form ``module:function``.

    Raises:
        FunctionInvalid: It has another form.
    """
    if not _NAME.fullmatch(name):
        raise FunctionInvalid(
            f"{name!r} is no name of a function. Write module:function, such as shop.mail:send"
        )
    return name


def load(name: str) -> Callable[[Any], Any]:
    """Import the module and return the function, which takes one message.

    Raises:
        FunctionInvalid: The module cannot be imported or has no such function, or what it has
            cannot be called with one message.
    """
    module_name, _, path = check_name(name).partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        # Whatever the module does when it is imported: it is the user's.
        raise FunctionInvalid(
            f"module {module_name!r} of {name!r} cannot be imported: {words_of(error)}. Modules "
            "are looked for in the current directory and in PYTHONPATH"
        ) from error
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise FunctionInvalid(f"module {module_name!r} has no {path!r}") from error
    if not callable(found):
        raise FunctionInvalid(f"{name!r} is {type(found).__name__}, allowed: a function")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise FunctionInvalid(
            f"{name!r} is a generator: calling it runs nothing. Use no yield in it"
        )
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise FunctionInvalid(f"{name!r} cannot be called with one message: {error}") from error
    except ValueError:  # one of C without a signature: the first call will tell
        pass
    return found


def words_of(error: BaseException) -> str:
    """The name and the text of a user's error, which may be long, or raise another one."""
    try:
        text = str(error)
    except BaseException as another:  # noqa: BLE001 - whatever its `__str__` does, it is the user's
        text = f"its text cannot be shown, because its __str__ raises {type(another).__name__}"
    return f"{type(error).__name__}: {text}"[:MOST_TEXT]
