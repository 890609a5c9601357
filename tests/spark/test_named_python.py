"""Spark's Python processes start quickly after `register`, and wherever the launcher is named."""

from __future__ import annotations

import json
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cassieq_spark import interpreter
from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script

ROWS = 10
THIS = sys.executable
LAUNCHER = interpreter.for_spark()


@pytest.fixture
def query(
    client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    start_script: Callable[..., Script],
    tmp_path: Path,
) -> Callable[..., tuple[dict[str, int], list[str]]]:
    """Run a query where these are named: what it has found, and the warnings about a slow start."""

    def run(
        how: str, variables: dict[str, str], **settings: str
    ) -> tuple[dict[str, int], list[str]]:
        queue = client.create_queue(f"named_{tmp_path.name}")
        queue.put_many([b"x"] * ROWS)
        first, rest = (CHILDREN / "named_python.py").read_text("utf-8").split("import json\n", 1)
        script = start_script(
            f"{first}import json\n"
            "import os\n"
            'for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):\n'
            "    os.environ.pop(name)\n"
            f"os.environ.update({variables!r})\n" + rest,
            cassandra.contact_points,
            str(tmp_path),
            queue.name,
            how,
            json.dumps(settings),
        )
        assert 0 == script.wait(deadline_s=180), script.output[-5_000:]
        (found,) = [line for line in script.lines if line.startswith("FOUND ")]
        slow = [line for line in script.lines if line.startswith("pyspark_zip_imported ")]
        return json.loads(found[6:]), slow

    return run


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The Python of another environment that has the same packages: a link to the same file."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "other" / "lib" / version / "site-packages"
    here = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2])]
    (packages / "this.pth").write_text("\n".join(here), encoding="utf-8")
    return str(tmp_path / "other" / "bin" / "python")


@pytest.mark.parametrize(
    ("how", "variables", "settings"),
    [
        pytest.param("registered", {}, {}, marks=pytest.mark.sample),
        ("registered", {"PYSPARK_PYTHON": THIS}, {}),
        ("registered", {"PYSPARK_DRIVER_PYTHON": THIS, "PYSPARK_PYTHON": THIS}, {}),
        ("registered", {}, {"spark.pyspark.python": THIS}),
        ("found", {"PYSPARK_PYTHON": LAUNCHER}, {}),
    ],
)
def test_all_that_a_query_starts_is_quick_once_it_is_registered_or_the_launcher_is_named(
    query: Callable[..., tuple[dict[str, int], list[str]]],
    how: str,
    variables: dict[str, str],
    settings: dict[str, str],
) -> None:
    found, slow = query(how, variables, **settings)
    # Spark looks for formats once a session, before it knows of ours, in what its variables name.
    looks = 1 if how == "registered" else 0
    assert (ROWS, looks, []) == (found["rows"], found["zipped"], slow)
    assert found["quick"]


def test_a_query_that_only_found_the_format_in_this_python_says_once_what_to_set(
    query: Callable[..., tuple[dict[str, int], list[str]]],
) -> None:
    found, slow = query("found", {"PYSPARK_PYTHON": THIS})
    assert (ROWS, 0) == (found["rows"], found["quick"])
    assert [f"pyspark_zip_imported interpreter={THIS} set_to={LAUNCHER}"] == slow


@pytest.mark.parametrize("how", ["found", "registered"])
def test_a_query_in_another_environments_python_says_once_what_to_set(
    query: Callable[..., tuple[dict[str, int], list[str]]], other: str, how: str
) -> None:
    found, slow = query(how, {"PYSPARK_PYTHON": other})
    assert (ROWS, 0) == (found["rows"], found["quick"])
    assert [f"pyspark_zip_imported interpreter={other} set_to={interpreter.for_spark()}"] == slow
