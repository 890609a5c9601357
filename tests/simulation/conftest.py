"""What all tests of the simulated world share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A world's faults are logged as a program's would be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
