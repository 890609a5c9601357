"""The public names, each with its home: the one table from which `cassieq_spark` offers them.

Type checkers read it as it stands. Nothing imports it at run time: that would import everything.
"""

from cassieq_spark.aio.client import AsyncClient as AsyncClient
from cassieq_spark.aio.consumer import AsyncConsumer as AsyncConsumer
from cassieq_spark.aio.queue import AsyncQueue as AsyncQueue
from cassieq_spark.aio.schedules import AsyncSchedules as AsyncSchedules
from cassieq_spark.client import Client as Client
from cassieq_spark.connecting import connect as connect
from cassieq_spark.connecting import connect_async as connect_async
from cassieq_spark.errors import CasAmbiguous as CasAmbiguous
from cassieq_spark.errors import CassieqError as CassieqError
from cassieq_spark.errors import ClientClosed as ClientClosed
from cassieq_spark.errors import PutAmbiguous as PutAmbiguous
from cassieq_spark.errors import QueueDeleted as QueueDeleted
from cassieq_spark.errors import QueueExists as QueueExists
from cassieq_spark.errors import QueueInUse as QueueInUse
from cassieq_spark.errors import QueueNotFound as QueueNotFound
from cassieq_spark.errors import ReceiptExpired as ReceiptExpired
from cassieq_spark.errors import ReceiptInvalid as ReceiptInvalid
from cassieq_spark.errors import ScheduleExists as ScheduleExists
from cassieq_spark.errors import ScheduleNotFound as ScheduleNotFound
from cassieq_spark.errors import SchemaMissing as SchemaMissing
from cassieq_spark.errors import StoreError as StoreError
from cassieq_spark.errors import StoreTimeout as StoreTimeout
from cassieq_spark.errors import StoreUnavailable as StoreUnavailable
from cassieq_spark.errors import StreamError as StreamError
from cassieq_spark.errors import UsageError as UsageError
from cassieq_spark.options import ConnectionArguments as ConnectionArguments
from cassieq_spark.options import QueueArguments as QueueArguments
from cassieq_spark.options import QueueSettings as QueueSettings
from cassieq_spark.options.parse import Seconds as Seconds
from cassieq_spark.options.schedules import ScheduleArguments as ScheduleArguments
from cassieq_spark.options.values import Secret as Secret
from cassieq_spark.queue.consumer import Consumer as Consumer
from cassieq_spark.queue.find import QueueInfo as QueueInfo
from cassieq_spark.queue.handle import Held as Held
from cassieq_spark.queue.handle import Queue as Queue
from cassieq_spark.queue.inspect.facts import Spot as Spot
from cassieq_spark.queue.inspect.stats import QueueStats as QueueStats
from cassieq_spark.queue.inspect.stats import ScheduledHour as ScheduledHour
from cassieq_spark.queue.message import Delivery as Delivery
from cassieq_spark.queue.message import Message as Message
from cassieq_spark.queue.put.results import PutResult as PutResult
from cassieq_spark.queue.schedules.dispatch import Dispatched as Dispatched
from cassieq_spark.queue.settle.batches import Settled as Settled
from cassieq_spark.queue.settle.settle import AckResult as AckResult
from cassieq_spark.repair.report import Finding as Finding
from cassieq_spark.repair.report import OnProgress as OnProgress
from cassieq_spark.repair.report import Progress as Progress
from cassieq_spark.repair.report import QueueRepair as QueueRepair
from cassieq_spark.repair.report import Redriven as Redriven
from cassieq_spark.repair.report import RepairReport as RepairReport
from cassieq_spark.repair.report import VerifyReport as VerifyReport
from cassieq_spark.schedules import ScheduleInfo as ScheduleInfo
from cassieq_spark.schedules import Schedules as Schedules
