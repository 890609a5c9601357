"""The samples of the guide to testing work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cassieq_spark.testing import MemoryClient

GUIDE = Path(__file__).parents[2] / "docs/guides/testing.md"


def test_the_samples_run(cassieq_memory: MemoryClient) -> None:
    with_fixture, by_itself, real = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(with_fixture, names)  # noqa: S102 - our own guide
    names["test_an_order_that_fails_comes_back"](cassieq_memory)
    exec(by_itself, {})  # noqa: S102
    exec(real, {})  # noqa: S102
