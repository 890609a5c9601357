"""A child process of a worker begins here, with what `main` takes.

With ``-m``, modules of the current directory are found.
"""

import sys

from cassieq_spark.worker.child import main

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
