"""`spark-submit jobs/to_files.py` writes a queue's messages into Parquet files.

It is the package's job, by its path in a checkout.
"""

from __future__ import annotations

import sys

from cassieq_spark.jobs.to_files import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
