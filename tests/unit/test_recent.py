"""`Recent` forgets what was used least recently, and nothing that anybody holds."""

from __future__ import annotations

import gc
import threading

from cassieq_spark.recent import Recent


class Thing:
    """Has state, so that another one under its key would be a mistake."""


def alive(recent: Recent[int, Thing]) -> int:
    gc.collect()
    return len(recent.values())


def test_of_ten_thousand_as_many_stay_as_were_used_last() -> None:
    recent: Recent[int, Thing] = Recent(1_000)
    for key in range(10_000):
        recent.get_or_make(key, Thing)
    assert 1_000 == alive(recent)
    assert [None, None] == [recent.get(key) for key in (0, 8_999)]
    assert recent.get(9_000) is not None


def test_to_use_one_keeps_it() -> None:
    recent: Recent[int, Thing] = Recent(2)
    first = id(recent.get_or_make(1, Thing))
    recent.get_or_make(2, Thing)
    recent.get(1)
    recent.get_or_make(3, Thing)
    assert first == id(recent.get(1))
    assert recent.get(2) is None


def test_what_is_held_is_found_however_many_were_used_since() -> None:
    recent: Recent[int, Thing] = Recent(2)
    held = recent.get_or_make(1, Thing)
    for key in range(10, 20):
        recent.get_or_make(key, Thing)
    assert 3 == alive(recent)
    assert held is recent.get_or_make(1, Thing)
    assert held is recent.get(1)


def test_another_one_takes_the_place_of_what_was_there() -> None:
    recent: Recent[int, Thing] = Recent(2)
    held, other = recent.get_or_make(1, Thing), Thing()
    assert other is recent.keep(1, other)
    assert other is recent.get_or_make(1, Thing)
    assert held is not other


def test_what_is_forgotten_is_made_anew_even_if_somebody_holds_it() -> None:
    recent: Recent[int, Thing] = Recent(2)
    held = recent.get_or_make(1, Thing)
    recent.forget(1)
    recent.forget(1)
    assert recent.get(1) is None
    assert held is not recent.get_or_make(1, Thing)


def test_threads_that_ask_at_once_get_the_same_one() -> None:
    recent: Recent[int, Thing] = Recent(1)
    together = threading.Barrier(8)
    made: list[Thing] = []
    got: list[Thing] = []

    def make() -> Thing:
        made.append(Thing())
        return made[-1]

    def ask() -> None:
        together.wait()
        got.append(recent.get_or_make(1, make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 == len(made)
    assert made * 8 == got
