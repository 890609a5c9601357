"""A benchmark that is run again in part keeps the rest, and says which run has found what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import runs

MACHINE = {"cores": 2}


def about(day: str, *, rounds: int = 5) -> dict[str, Any]:
    return {
        "command": f"on {day}",
        "date": day,
        "commit": "c0ffee",
        "machine": MACHINE,
        "rounds": rounds,
    }


def first(path: Path) -> dict[str, Any]:
    found = {"rates": 1, "failures": {}, "history": 1, "sides": {"ours": 1}, "skipped": {}}
    every = runs.together({}, found, about("monday", rounds=2), ["rates", "history"])
    path.write_text(json.dumps(every), encoding="utf-8")
    return every


def test_what_was_not_measured_again_is_kept_with_its_own_run(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    first(path)
    new = {"history": 2, "sides": {"theirs": 2}, "skipped": {"rabbitmq": "not there"}}
    kept = runs.kept(path, ["history"], MACHINE)
    every = runs.together(kept, new, about("tuesday"), ["history"])
    assert (1, {}, 2) == (every["rates"], every["failures"], every["history"])
    assert {"ours": 1, "theirs": 2} == every["sides"]
    assert {"rates": "monday", "history": "tuesday"} == {
        load: run["date"] for load, run in every["runs"].items()
    }
    assert 2 == every["rounds"], "of the load that has rounds"


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    first(path)
    with pytest.raises(SystemExit, match="another machine"):
        runs.kept(path, ["history"], {"cores": 4})
    with pytest.raises(SystemExit, match="no earlier results"):
        runs.kept(tmp_path / "none.json", ["history"], MACHINE)
