"""A test that is a coroutine runs on an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest

LONGEST_S = 60
"""Ends a coroutine that hangs; no test expects it."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run it, in place of pytest, which knows no coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), LONGEST_S))
    return True
