"""The format in a session of Spark Connect, whose driver is another process than the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.processes import Script
    from tests.fixtures.streams import Streams


def test_a_queue_is_registered_read_streamed_and_written_in_a_session_of_spark_connect(
    start_script: Callable[..., Script], streams: Streams, tmp_path: Path
) -> None:
    script = start_script(
        (CHILDREN / "connect_session.py").read_text(encoding="utf-8"),
        json.dumps(streams.options),
        str(tmp_path),
        # Spark's own tests' variable: the server takes any free port, and the client asks for it.
        env={"SPARK_TESTING": "1"},
    )

    assert 0 == script.wait(deadline_s=280), script.output
    said = dict(line.split(": ", 1) for line in script.lines if ": " in line)
    assert said["session"].startswith("pyspark.sql.connect.")
    assert "6" == said["visible"] == said["stats"] == said["copied"] == said["back"]
    assert "[cassieq:option_unknown] 'maxmesages' is not an option of" in said["refused"]
    assert said["settle"].startswith("[cassieq:usage] settle needs the driver's own Spark session")
    assert "True" == said["joined"]
    assert 6 == streams.queue.stats().visible
