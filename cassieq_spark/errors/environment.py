"""Errors about the machine that a program runs on."""

from __future__ import annotations

from cassieq_spark.errors.base import CassieqError


class EnvironmentProblem(CassieqError):
    """Errors about the machine that a program runs on."""


class EmbeddedFailed(EnvironmentProblem):
    """An embedded Cassandra node did not obey; the end of its log is in the message."""

    code = "embedded_failed"
    meaning = "An embedded Cassandra node did not start or stop."
    remedy = "Read the end of its log, which is in the message."


class DiskFull(EnvironmentProblem):
    """A disk has too little free space for what is about to begin there."""

    code = "disk_full"
    meaning = "A disk has too little free space for an embedded Cassandra node, or for its jars."
    remedy = "Free space there, or name another directory."


class JavaNotFound(EnvironmentProblem):
    """No Java of a suitable version was found."""

    code = "java_not_found"
    meaning = "Cassandra or Spark needs a version of Java that was not found."
    remedy = "Install Java 17, or set JAVA_HOME."


class OutputFailed(EnvironmentProblem):
    """A command could not write to standard output or to its report file."""

    code = "output_failed"
    meaning = (
        "A command could not write its output: the disk is full, or standard output is closed."
    )
    remedy = "Free space, or write to another place. What the command did before stays done."


class WorkerEnvironment(EnvironmentProblem):
    """The Python that Spark runs lacks something."""

    code = "worker_environment"
    meaning = "Spark's Python workers run another interpreter than the driver, or lack a package."
    remedy = "On every node, set PYSPARK_PYTHON to the interpreter that has cassieq_spark."
