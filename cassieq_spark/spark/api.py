"""The public names of `cassieq_spark.spark`, as `cassieq_spark.api` has those of the package."""

from cassieq_spark.spark.connector.config import spark_config as spark_config
from cassieq_spark.spark.connector.writer import foreach_batch as foreach_batch
from cassieq_spark.spark.data_source import register as register
from cassieq_spark.spark.jobs.settle_frame import settle as settle
from cassieq_spark.spark.listener import CassieqListener as CassieqListener
