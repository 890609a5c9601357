"""Retry with backoff: a worker calls `charge`, which fails while the bank is away.

Run it: python examples/retry_backoff.py puts three payments. Then, in examples/:
cassieq worker retry_backoff:charge payments --backoff 200ms --backoff-max 2s --idle-timeout 5s
"""

import os

import cassieq_spark as cassieq


class BankIsAway(Exception):
    """The bank does not answer: try again later."""


def charge(message: cassieq.Delivery) -> None:
    """Charge one payment. An error gives it back, with a delay that doubles each time."""
    payment = message.body.decode()
    if payment == "broken":
        raise ValueError(f"payment {payment!r} has no amount")  # max_deliveries ends this
    if message.delivery_count < 3:
        raise BankIsAway(f"attempt {message.delivery_count} for payment {payment}")
    # The key lets the bank refuse a payment that it has: a message may come twice.
    print(f"charged {payment} with key {message.message_id[-4:]}", flush=True)


def main() -> None:
    """Make the queue, and put the payments."""
    with cassieq.connect(
        os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042"),
        keyspace=os.environ.get("CASSIEQ_KEYSPACE", "cassieq"),
    ) as client:
        client.bootstrap()
        client.create_queue("payments.dead")
        queue = client.create_queue("payments", max_deliveries=4, dead_letter_queue="payments.dead")
        queue.put_many([b"12 EUR", b"30 EUR", b"broken"])
    print("put 3 payments")


if __name__ == "__main__":
    main()
