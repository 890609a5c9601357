"""Jobs: ``spark-submit "$(cassieq job-path repair)"``, or ``python -m cassieq_spark.jobs.repair``.

Each module is a program of its own, and begins with what it does.
"""

from __future__ import annotations

import cassieq_spark.spark  # noqa: F401 - says in one line that there is no PySpark
