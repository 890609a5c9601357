"""RabbitMQ: a node of its own, quorum queues, publisher confirms, and acks by hand.

A message is confirmed when a majority of the queue's nodes (here: one) has fsynced it. RabbitMQ
does not answer an ack.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from bench.peers.peer import ADDRESS, Got, PeerMissing, as_user, folder_of, free_port, running

try:
    import pika
    import pika.exceptions
    from pika import spec
except ImportError:  # told by `server`
    pika = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

USER = "rabbitmq"
PREFETCH_TIMES = 2
"""A consumer that takes more than one at once has the next ones sent while it works."""

_ANSWER_S = 60.0
_SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)  # Debian's, without the wrapper for services
_CONFIGURATION = """\
listeners.tcp.1 = {address}:{port}
log.console.level = warning
"""


@contextmanager
def server() -> Iterator[int]:
    """A node in a temporary folder, with a port mapper of its own; the port of AMQP.

    Raises:
        PeerMissing: RabbitMQ, Erlang or pika is not there, or it does not start.
    """
    if pika is None:
        raise PeerMissing("pika is not installed: pip install pika")
    program, mapper = _programs()
    port, mapper_port = free_port(), free_port()
    with folder_of(USER) as folder:
        files = {
            "rabbitmq.conf": _CONFIGURATION.format(address=ADDRESS, port=port),
            "enabled_plugins": "[].\n",
            "rabbitmq-env.conf": "",
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            if os.geteuid() == 0:
                shutil.chown(folder / name, USER)
        environment = {
            "HOME": str(folder),  # of the cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_DIST_PORT": str(free_port()),
            # Becomes the server, instead of a shell that watches it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }
        # Without it the node would start one that outlives it.
        mapping = as_user(USER, [mapper, "-address", ADDRESS, "-port", str(mapper_port)])
        with (
            running(mapping, folder=folder, environment=environment, is_up=lambda: True),
            running(
                as_user(USER, [program]),
                folder=folder,
                environment=environment,
                is_up=lambda: _answers(port),
            ),
        ):
            yield port


def version(port: int) -> str:
    """As the node says it."""
    with Client(port) as client:
        return f"RabbitMQ {client.properties.get('version')}, pika {pika.__version__}"


class Client:
    """One connection, whose loop runs while something is waited for. A context manager."""

    def __init__(self, port: int) -> None:
        self._failure: str | None = None
        # No heartbeats: between two loads nobody runs the loop.
        self._connection = pika.SelectConnection(
            pika.ConnectionParameters(ADDRESS, port, heartbeat=0),
            on_open_error_callback=self._failed,
            on_close_callback=self._failed,
        )
        self._loop = self._connection.ioloop
        self._loop.activate_poller()
        self.until(lambda: self._connection.is_open)

    @property
    def properties(self) -> dict[str, Any]:
        """What the node says of itself."""
        return dict(self._connection.params and self._connection.server_properties)

    def channel(self) -> Any:
        """A new one, open."""
        channel = self._connection.channel(on_open_callback=lambda _: None)
        channel.add_on_close_callback(self._channel_closed)
        self.until(lambda: channel.is_open)
        return channel

    def until(self, is_done: Callable[[], bool], limit_s: float = _ANSWER_S) -> bool:
        """Run the loop until then; whether it came within the limit.

        Raises:
            RuntimeError: The connection or a channel was closed.
        """
        late: list[bool] = []
        timer = self._loop.call_later(limit_s, lambda: late.append(True))
        while not is_done() and not late:
            if self._failure:
                raise RuntimeError(self._failure)
            self._loop.poll()
            self._loop.process_timeouts()
        if not late:
            self._loop.remove_timeout(timer)
        return is_done()

    def create_queue(self, name: str) -> Queue:
        """A quorum queue."""
        queue = self.queue(name)
        queue.declare()
        return queue

    def queue(self, name: str) -> Queue:
        """One that is there, by a channel of its own."""
        return Queue(self, name)

    def __enter__(self) -> Self:
        """It is connected already."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        if self._connection.is_open:
            self._connection.close()
            self._failure = None
            while not self._connection.is_closed:
                self._loop.poll()
                self._loop.process_timeouts()
        self._loop.deactivate_poller()
        self._loop.close()

    def _failed(self, _: object, reason: object) -> None:
        self._failure = str(reason)

    def _channel_closed(self, _: object, reason: object) -> None:
        if not isinstance(reason, pika.exceptions.ChannelClosedByClient):
            self._failure = str(reason)


class Queue:
    """One queue and its channel, which confirms what it is sent."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._sent = 0
        self._lowest = 1
        self._unconfirmed: set[int] = set()
        self._buffer: deque[Got] = deque()
        self._empty = False
        self._prefetch: int | None = None
        self._channel = client.channel()
        self._channel.add_callback(self._nothing, [spec.Basic.GetEmpty], one_shot=False)
        self._answered(
            lambda done: self._channel.confirm_delivery(self._acked_or_not, callback=done)
        )

    def declare(self) -> None:
        """Create it."""
        arguments = {"x-queue-type": "quorum"}
        self._answered(
            lambda done: self._channel.queue_declare(
                self._name, durable=True, arguments=arguments, callback=done
            )
        )

    def put_many(self, bodies: Sequence[bytes]) -> None:
        """Publish, then wait until all are confirmed."""
        for body in bodies:
            self._channel.basic_publish("", self._name, body, _PERSISTENT)
        # Tags count from 1, for each channel.
        self._unconfirmed.update(range(self._sent + 1, self._sent + len(bodies) + 1))
        self._sent += len(bodies)
        if not self._client.until(lambda: not self._unconfirmed):
            raise RuntimeError(f"{len(self._unconfirmed)} messages were not confirmed")

    def get(self, max_messages: int = 10, *, wait: float = 0) -> list[Got]:
        """What a consumer was sent, as soon as there is some; without ``wait``, ``basic.get``."""
        if wait:
            self._consume(max_messages * (PREFETCH_TIMES if max_messages > 1 else 1))
            self._client.until(lambda: bool(self._buffer), wait)
        else:
            self._empty = False
            self._channel.basic_get(self._name, self._got)
            self._client.until(lambda: self._empty or bool(self._buffer))
        count = min(max_messages, len(self._buffer))
        return [self._buffer.popleft() for _ in range(count)]

    def ack(self, messages: Sequence[Got]) -> None:
        """Ack all up to the last: they were sent in this order, and the ones before are acked."""
        self._channel.basic_ack(messages[-1].handle, multiple=len(messages) > 1)

    def delete(self) -> None:
        """The queue and its messages."""
        self._answered(lambda done: self._channel.queue_delete(self._name, callback=done))
        self.close()

    def close(self) -> None:
        """Give back what was sent and is not acked; all acks have arrived when this returns."""
        self._channel.close()
        self._client.until(lambda: self._channel.is_closed)

    def _consume(self, prefetch: int) -> None:
        if self._prefetch == prefetch:
            return
        if self._prefetch is not None:
            raise RuntimeError(f"prefetch was {self._prefetch} and cannot become {prefetch}")
        self._prefetch = prefetch
        self._answered(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        self._answered(
            lambda done: self._channel.basic_consume(self._name, self._got, callback=done)
        )

    def _answered(self, ask: Callable[[Callable[[object], None]], object]) -> None:
        answers: list[object] = []
        ask(answers.append)
        if not self._client.until(lambda: bool(answers)):
            raise RuntimeError(f"{self._name}: RabbitMQ did not answer")

    def _got(self, _: object, deliver: Any, __: object, body: bytes) -> None:
        self._buffer.append(Got(body, deliver.delivery_tag))

    def _nothing(self, _: object) -> None:
        self._empty = True

    def _acked_or_not(self, frame: Any) -> None:
        if frame.method.NAME == spec.Basic.Nack.NAME:
            raise RuntimeError(f"{self._name}: RabbitMQ has refused a message")
        tag = frame.method.delivery_tag
        if not frame.method.multiple:
            self._unconfirmed.discard(tag)
            return
        self._unconfirmed.difference_update(range(self._lowest, tag + 1))
        self._lowest = tag + 1


_PERSISTENT: Final = None if pika is None else pika.BasicProperties(delivery_mode=2)


def _programs() -> tuple[str, str]:
    found = next((one for one in _SERVERS if Path(one).exists()), None)
    mapper = shutil.which("epmd")
    if found is None or mapper is None:
        raise PeerMissing("RabbitMQ or Erlang is not installed: apt install rabbitmq-server")
    return found, mapper


def _answers(port: int) -> bool:
    try:
        pika.BlockingConnection(pika.ConnectionParameters(ADDRESS, port)).close()
    except pika.exceptions.AMQPError:
        return False
    return True
