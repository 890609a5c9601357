"""Counters lose nothing between threads, and each one that is declared is counted somewhere."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import cassieq_spark
from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.metrics import Counter, LabelledCounter

PACKAGE = Path(cassieq_spark.__file__).parent


@pytest.mark.parametrize(
    ("counter", "texts"),
    [
        (Counter("tests_total", "Of this test."), ()),
        (LabelledCounter("tests_total", "Of this test.", label="letter"), ("a",)),
    ],
    ids=["plain", "labelled"],
)
def test_nothing_is_lost_when_another_thread_counts_in_the_middle(
    counter: Counter | LabelledCounter, texts: tuple[str, ...]
) -> None:
    other = threading.Thread(target=counter.inc, args=texts)

    class Interrupted(int):
        """Lets the other thread in after the old value was read and before the new one is kept."""

        def __radd__(self, old: int) -> int:
            other.start()
            other.join(0.05)  # it waits for us, if it is right
            return old + int(self)

    counter.inc(*texts, Interrupted(10))
    other.join()

    assert 11 == counter.value


def test_a_counter_only_grows() -> None:
    counter = Counter("tests_total", "Of this test.")
    counter.inc(0)

    with pytest.raises(ValueError, match="tests_total only grows, not by -1"):
        counter.inc(-1)

    assert 0 == counter.value


def test_two_counters_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two counters are named cas_applied_total"):
        metrics._counter("cas_applied_total", "Again.")


def test_a_label_with_ever_new_texts_does_not_grow_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "MOST_TEXTS", 2)
    counter = LabelledCounter("tests_total", "Of this test.", label="letter")

    for text in "abcda":
        counter.inc(text)

    assert {"d": 1, "a": 1, metrics.OTHERS: 3} == counter.values
    assert 5 == counter.value


def test_what_was_counted_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_TEXTS", 2)
    counter = LabelledCounter("tests_total", "Of this test.", label="letter")

    for text in "abac":
        counter.inc(text)

    assert {"a": 2, "c": 1, metrics.OTHERS: 1} == counter.values


def test_the_counts_of_a_queue_that_is_gone_go_to_the_others() -> None:
    name, counters = f"q-{new_uuid().hex}", (metrics.MESSAGES_PUT, metrics.MESSAGES_ACKED)
    for counter in counters:
        counter.inc(name, 3)
    before = {counter: (counter.value, counter.values) for counter in counters}
    assert name in metrics.counted_queues()

    metrics.forget_queue(name)
    metrics.forget_queue(name)

    assert name not in metrics.counted_queues()
    for counter in counters:
        in_all, by_queue = before[counter]
        others = by_queue.pop(metrics.OTHERS, 0) + by_queue.pop(name)
        assert (in_all, {**by_queue, metrics.OTHERS: others}) == (counter.value, counter.values)


def test_only_queues_are_gone_by_their_names() -> None:
    name = f"statement-{new_uuid().hex}"
    metrics.STATEMENTS.inc(name)

    metrics.forget_queue(name)

    assert 1 == metrics.STATEMENTS.values[name]
    assert name not in metrics.counted_queues()


def test_a_snapshot_shows_a_labelled_counter_label_by_label() -> None:
    label = "of_this_test"

    metrics.STATEMENTS.inc(label, 3)

    assert 3 == metrics.snapshot()[f"statements_total{{{label}}}"]


def test_a_snapshot_has_every_counter_by_name_and_does_not_move() -> None:
    before = metrics.snapshot()

    metrics.CAS_APPLIED.inc(3)
    after = metrics.snapshot()

    assert {**before, "cas_applied_total": before["cas_applied_total"] + 3} == after
    plain = [one.name for one in metrics.every_counter()]
    assert plain == [name for name in after if "{" not in name]


def test_every_declared_counter_is_counted_somewhere() -> None:
    kinds = (Counter, LabelledCounter)
    declared = {name for name, value in vars(metrics).items() if isinstance(value, kinds)}
    counted = {
        node.func.value.attr
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "inc"
        and isinstance(node.func.value, ast.Attribute)
    }

    assert declared == counted
