"""The guide to the views: each question has the answer that is printed there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

    from cassieq_spark.testing import EmbeddedCassandra

BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
VIEW = re.compile(r"^## (\w+)$", re.MULTILINE)


def test_every_question_has_the_answer_of_the_guide(
    pytestconfig: pytest.Config,
    spark: SparkSession,
    cassandra: EmbeddedCassandra,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (pytestconfig.rootpath / "docs" / "guides" / "views.md").read_text("utf-8")
    assert 2 == text.count('"127.0.0.1:9042"')
    text = text.replace('"127.0.0.1:9042")', f'"{cassandra.contact_points}", keyspace=KEYSPACE)')
    text = text.replace(
        '"127.0.0.1:9042"}', f'"{cassandra.contact_points}", "keyspace": KEYSPACE}}'
    )
    names: dict[str, object] = {"spark": spark, "KEYSPACE": "views_guide"}
    found = BLOCK.findall(text)
    assert len(found) == 1 + 18 + 1

    for code, expected in found:
        exec(compile(code, "views.md", "exec"), names)  # noqa: S102 - our own documents
        printed = capsys.readouterr().out
        assert (code, UUID.sub("<uuid>", expected).strip()) == (
            code,
            UUID.sub("<uuid>", printed).strip(),
        )
    for view in ("messages", "buckets", "leases", "dead", "queues", "stats"):
        spark.catalog.dropTempView(view)


def test_each_view_has_three_questions(pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / "docs" / "guides" / "views.md").read_text("utf-8")
    parts = re.split(VIEW, text)
    questions = {
        name: len(re.findall(r"^\*[^*]+\?\*", part, re.MULTILINE))
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }

    assert {"messages", "buckets", "leases", "dead", "queues", "stats"} <= questions.keys()
    assert {3} == {questions[name] for name in questions if name != "Filters"}
