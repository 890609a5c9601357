"""The public names of `cassieq_spark.testing`, as `cassieq_spark.api` has those of the package."""

from cassieq_spark.clock import Cancellable as Cancellable
from cassieq_spark.clock import Clock as Clock
from cassieq_spark.embedded import EmbeddedCassandra as EmbeddedCassandra
from cassieq_spark.embedded import Node as Node
from cassieq_spark.testing.manual import ConditionNotMet as ConditionNotMet
from cassieq_spark.testing.manual import ManualClock as ManualClock
from cassieq_spark.testing.manual import wait_until as wait_until
from cassieq_spark.testing.memory import MemoryClient as MemoryClient
from cassieq_spark.testing.memory import MemoryClock as MemoryClock
from cassieq_spark.testing.memory import memory_client as memory_client
