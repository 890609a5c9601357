"""`Work` is what one client keeps for one lane, and shares among its handles."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from cassieq_spark.queue.get.poll import Getter
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.settle.ack_group import AckGroup


@dataclass(slots=True)
class Work:
    """The state that one client keeps for one lane, shared by all its handles and threads."""

    producer: Producer = field(default_factory=Producer)
    getter: Getter = field(default_factory=Getter)
    acks: AckGroup = field(default_factory=AckGroup)


def default_owner() -> str:
    """The name of a consumer that gives itself none: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"
