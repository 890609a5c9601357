"""Scheduled messages: a reminder for later, one that is cancelled, and one that is due now.

Run it: python examples/scheduled.py
"""

import os
from datetime import UTC, datetime, timedelta

import cassieq_spark as cassieq

with cassieq.connect(
    os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042"),
    keyspace=os.environ.get("CASSIEQ_KEYSPACE", "cassieq"),
) as client:
    client.bootstrap()
    queue = client.create_queue("reminders.example")

    now = datetime.now(UTC)  # noqa: TID251 - a program of yours asks its machine
    passport = queue.put(b"renew your passport", due_at=now + timedelta(days=300))
    queue.put(b"pay the rent", due_at=now + timedelta(days=3))
    queue.put(b"stand up", delay=1)

    print("cancelled:", queue.cancel(passport))
    print("scheduled:", queue.stats().scheduled)
    with queue.consumer(idle_timeout=4) as consumer:
        for message in consumer:
            print("now:", message.body.decode())
            consumer.ack(message)
