"""Run the command ``cassieq`` as ``python -m cassieq_spark``."""

from cassieq_spark.cli import main

if __name__ == "__main__":
    main()
