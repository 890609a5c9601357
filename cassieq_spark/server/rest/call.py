"""`Call` is a request of the REST door, and `Answer` its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from cassieq_spark.model.rights import Right
from cassieq_spark.server import door

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A result with its status.

    Attributes:
        body: A JSON object, or bytes; None: there is no body.
        status: None: the usual one of the operation.
        media_type: Of the bytes.
    """

    body: dict[str, Any] | bytes | None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = RAW


@dataclass(slots=True, kw_only=True)
class Call(door.Call):
    """One request.

    Attributes:
        query: An instance of the operation's query.
        body: An instance of the operation's body, or bytes.
        is_raw: Whether the answer shall be the bytes of one message.
    """

    query: Any
    body: Any
    is_raw: bool

    def target(self, name: str) -> str:
        """A queue that messages shall go to, as the client knows it.

        Raises:
            OptionInvalid: It is a queue of another account.
            AccessDenied: The caller may not put messages there.
        """
        queue = self.principal.full_name(name)
        self.principal.require(Right.PUT, queue)
        return queue
