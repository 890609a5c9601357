"""What the documentation says about the code is what the code says."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from cassieq_spark.options import OPTIONS, Scope
from tests.fixtures import scripts

ROOT = Path(__file__).resolve().parents[2]
README = "# A\n\n<!-- kafka:begin -->\nwhat was here\n<!-- kafka:end -->\n\nB\n"

generate = scripts.load("generate")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    assert 0 == generate.main([], tmp_path)
    return tmp_path


def test_the_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    status = generate.main(["--check"])

    assert (0, "") == (status, capsys.readouterr().err)


def test_the_readers_of_the_readme_can_divide_one_rate_by_the_other(project: Path) -> None:
    results = project / "bench" / "results"
    results.mkdir(parents=True)
    shutil.copy(ROOT / "bench" / "results" / "kafka.json", results)

    assert 0 == generate.main([], project)

    text = (project / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| \*\*([\d.]+)\*\* \| ([\d,]+) \| ([\d,]+) \|", text)
    assert len(scripts.load("measured_kafka").LEGS) == len(rows)
    for ratio, ours, theirs in rows:
        divided = int(ours.replace(",", "")) / int(theirs.replace(",", ""))
        assert divided == pytest.approx(float(ratio), abs=0.01)


def test_the_configuration_has_every_default_but_a_queues_and_an_example_of_all_else() -> None:
    text = (ROOT / "conf" / "cassieq.toml").read_text(encoding="utf-8")
    uncommented = "\n".join(
        line[2:] if " = " in line and line.startswith("# ") else line for line in text.splitlines()
    )
    expected = {option.name for option in OPTIONS if option.has_variable}
    expected -= {option.name for option in OPTIONS if Scope.SPARK in option.scopes}

    set_values = _values(tomllib.loads(text))
    all_values = _values(tomllib.loads(uncommented))

    assert expected == all_values.keys()
    # What stands in [queue] counts as asked for, and a later release may have other defaults.
    has_default = {
        option.name
        for option in OPTIONS
        if option.default is not None and option.has_variable and Scope.QUEUE not in option.scopes
    }
    assert has_default == set_values.keys()
    for option in OPTIONS:
        if option.name in all_values:
            parsed = option.values.parse(all_values[option.name])
            assert option.default is None or option.default == parsed


def _values(document: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: value for section in document.values() for name, value in section.items()}
