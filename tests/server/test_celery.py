"""A Celery worker whose broker is a gateway with accounts, by the transport ``sqs://``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account
from tests.server.conftest import Gateway, sqs_at

APP = """
    import os, pathlib
    from celery import Celery

    queue = os.environ["QUEUE"]
    app = Celery("tasks", broker="sqs://{KEY}:{SECRET}@{GATEWAY}".format(**os.environ))
    app.conf.update(
        task_default_queue=queue,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "region": "eu-central-1",
            "is_secure": False,
            "predefined_queues": {queue: {
                "url": os.environ["URL"],
                "access_key_id": os.environ["KEY"],
                "secret_access_key": os.environ["SECRET"],
            }},
            "wait_time_seconds": 5,
        },
    )

    @app.task
    def note(number):
        with pathlib.Path(os.environ["NOTES"]).open("a") as notes:
            notes.write(f"{number}\\n")
"""


def test_a_celery_worker_does_all_tasks(
    guarded: Gateway, account: Account, name: str, tmp_path: Path
) -> None:
    sqs = sqs_at(guarded.url, key=account.key)
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    (tmp_path / "tasks.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    notes = tmp_path / "notes"
    notes.touch()
    environment = {
        **os.environ,
        "QUEUE": name,
        "GATEWAY": urlsplit(guarded.url).netloc,
        "KEY": account.key[0],
        "SECRET": account.key[1],
        "URL": url,
        "NOTES": str(notes),
    }
    subprocess.run(
        [sys.executable, "-c", "import tasks\nfor n in range(30): tasks.note.delay(n)"],
        cwd=tmp_path, env=environment, check=True, timeout=60,
    )  # fmt: skip
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"],
            cwd=tmp_path, env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(
            lambda: len(notes.read_text("utf-8").split()) >= 30,
            deadline_s=90,
            describe=lambda: log.read_text("utf-8", errors="replace"),
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)

    assert set(map(str, range(30))) == set(notes.read_text("utf-8").split())
    sqs.delete_queue(QueueUrl=url)
    sqs.close()
