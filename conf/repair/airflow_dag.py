"""Repair by Apache Airflow: a pass each minute, a sweep once a week, a check once a day.

Needs apache-airflow-providers-apache-spark. Connection ``spark_default`` says where Spark is; its
workers have this package, and ``CASSIEQ_CONTACT_POINTS`` in their environment.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

JOB = "/opt/cassieq/jobs/repair.py"

SCHEDULES = {
    "cassieq_repair": ("* * * * *", ["--once"]),
    # Though the pass of that minute is at work.
    "cassieq_repair_full": ("17 3 * * 0", ["--once", "--full", "--no-leader"]),
    "cassieq_verify": ("41 4 * * *", ["--once", "--verify"]),
}

for name, (schedule, arguments) in SCHEDULES.items():
    with DAG(
        dag_id=name,
        schedule=schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        # A pass that was missed is of no use: the next one does its work.
        catchup=False,
        max_active_runs=1,
        # Exit code 1 says that something needs a person: again at once does not help.
        default_args={"retries": 0, "execution_timeout": timedelta(minutes=30)},
        tags=["cassieq"],
    ) as dag:
        SparkSubmitOperator(
            task_id="repair",
            conn_id="spark_default",
            application=JOB,
            application_args=arguments,
            name=name,
        )
    globals()[name] = dag  # where Airflow looks for it
