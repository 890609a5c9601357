"""The name of a worker's function: what it may be, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassieq_spark.errors import FunctionInvalid
from cassieq_spark.worker.child import check_name, load
from tests.unit.test_annotations import DELIVERY

MODULE = """
import cassieq_spark as cassieq

empty, worker = cassieq.Worker(), cassieq.Worker()
worker.on()(lambda message: [message])

class Shop:
    @staticmethod
    def send(message): return message

    def __call__(self, message): return [message]

async def later(message): return message
def two(message, other): ...
def more(message, *, dry=False): return message
def nothing(): ...
def lazily(message): yield message
shop = Shop()
number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"worked_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / f"{name}_broken.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    "name", ["", "send", "mail:", ":send", "mail.send", "a:b:c", "a/b:c", "a-b:c", "..a:b", "a:1b"]
)
def test_what_has_not_the_form_of_a_name_is_refused(name: str) -> None:
    with pytest.raises(FunctionInvalid, match=r"Write module:function, such as shop\.mail:send"):
        check_name(name)


@pytest.mark.parametrize("path", ["Shop.send", "shop", "later", "more", "worker"])
def test_what_can_be_called_with_one_message_is_found(module: str, path: str) -> None:
    found = load(f"{module}:{path}")
    assert callable(found)
    if path == "Shop.send":
        assert 5 == found(5)
    if path in {"shop", "worker"}:
        assert [DELIVERY] == found(DELIVERY)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("send", "has no 'send'"),
        ("Shop.receive", "has no 'Shop.receive'"),
        ("two", "missing a required argument: 'other'"),
        ("nothing", "too many positional arguments"),
        ("number", "is int, allowed: a function"),
        ("lazily", "is a generator"),
        ("empty", "is a Worker without functions. Add one by"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(
    module: str, path: str, says: str
) -> None:
    with pytest.raises(FunctionInvalid, match=says):
        load(f"{module}:{path}")


def test_a_module_that_is_not_there_or_fails_is_named(module: str) -> None:
    with pytest.raises(FunctionInvalid, match=r"'no_such_module' .* cannot be imported: ModuleNot"):
        load("no_such_module:f")
    with pytest.raises(FunctionInvalid, match="cannot be imported: ZeroDivisionError: division"):
        load(f"{module}_broken:f")
