"""`spark-submit jobs/repair.py` repairs queues after processes died.

It is the package's job, by its path in a checkout.
"""

from __future__ import annotations

import sys

from cassieq_spark.jobs.repair import job, main

__all__ = ["job", "main"]

if __name__ == "__main__":
    sys.exit(main())
