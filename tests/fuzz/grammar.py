"""Requests to the SQS door, made of the list of its actions: right ones, and wrong in each way.

Texts between ``@`` are filled in when a request is sent, so that drawing depends on nothing else:
``@receipt-3@`` is one that was given out, ``@x1024@`` so many letters, ``@deep100@`` nested lists
and ``@tiny100@`` many values in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from hypothesis import strategies as st

from cassieq_spark.server.operations import ACTIONS
from cassieq_spark.server.sqs import attributes, protocol
from cassieq_spark.server.sqs.protocol import Kind, Parameters

QUEUES: Final = (*["fuzz-0"] * 3, "fuzz-1", "fuzz-dead")
OFTEN: Final = ("CreateQueue", "ReceiveMessage", "SendMessage", "SendMessageBatch") * 3
"""Without these the queues would be gone, or empty, most of the time."""
OTHERS: Final = ("vault", "ledger", "fuzz-0")
"""Of other accounts: nothing of these is ever shown or done."""

any_text = st.text(st.characters(), max_size=30)
"""With halves of characters, which JSON can hold."""
odd_text = st.one_of(
    any_text,
    st.sampled_from(
        ["", " ", "\0", "\x85", "\ufffe", "\ud800", "\u202e", "é" * 80, "a" * 81, "../..", "%00",
         "true", "null", "1e400", "-0", "<a>", "]]>", "&#0;", "x.fifo", "'", '"', "\r\n", "@x300@"]
    ),
)  # fmt: skip
LIMITS: Final = (0, 1, 10, 20, 50, 256, 500, 900, 1_000, 1_024, 43_200, 86_400, 1_209_600, 2**31)
numbers = st.one_of(
    st.builds(lambda at, by: at + by, st.sampled_from(LIMITS), st.sampled_from([-1, 0, 1])),
    st.sampled_from([-(2**31), 2**53, 2**63, 2**64, 10**18, 10**400, -(10**19)]),
    st.integers(),
)
SIZES: Final = (255, 256, 257, 1_024, 262_143, 262_144, 1_048_575, 1_048_576, 1_048_577)
sized = st.sampled_from([f"@x{one}@" for one in SIZES])
leaf = st.one_of(st.none(), st.booleans(), st.floats(), numbers, odd_text)
odd = st.one_of(
    leaf,
    st.sampled_from(["@deep100@", "@deep100000@", "@tiny100000@", "@x70000@"]),
    st.lists(leaf, max_size=12),
    st.dictionaries(odd_text, leaf, max_size=12),
    st.dictionaries(odd_text, st.lists(leaf, max_size=2), max_size=3),
)

Strategy = st.SearchStrategy[Any]
unknown = st.dictionaries(odd_text, odd, max_size=3)
cuts = st.tuples(st.integers(0, 1_000), st.integers(0, 40), st.binary(max_size=8))


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, before it is filled in and signed.

    Attributes:
        who: ``own``, ``presigned`` or ``token``: it is let in. The others are not: ``forged``,
            ``altered``, ``nobody``.
        cut: Where bytes are changed, in thousandths, how many, and what is put there instead.
    """

    gateway: str
    account: int
    who: str
    is_json: bool
    action: str
    given: Mapping[str, Any]
    cut: tuple[int, int, bytes] | None
    headers: tuple[tuple[str, str], ...]


def url(numbers_: tuple[str, ...], account: int) -> Strategy:
    """Queue URLs, most of them the caller's own; only their paths count."""
    own = st.sampled_from([f"http://x/{numbers_[account]}/{name}" for name in QUEUES])
    others = [one for at, one in enumerate(numbers_) if at != account]
    theirs = st.builds(
        lambda number, name, form: form.format(number, name),
        st.sampled_from(others),
        st.sampled_from(OTHERS),
        st.sampled_from(["http://x/{}/{}", "{}/{}", "/{}%2f{}", "http://x/a/../{}/{}", "//{}//{}"]),
    )
    return st.one_of(*[own] * 8, theirs)


def arn(numbers_: tuple[str, ...], account: int) -> Strategy:
    others = [one for at, one in enumerate(numbers_) if at != account]
    return st.one_of(
        st.sampled_from(QUEUES).map(f"arn:aws:sqs:eu-west-1:{numbers_[account]}:{{}}".format),
        st.sampled_from(QUEUES).map(f"arn:aws:sqs:x:{numbers_[account]}:{{}}".format),
        st.builds(
            "arn:aws:sqs:eu-west-1:{}:{}".format, st.sampled_from(others), st.sampled_from(OTHERS)
        ),
    )


def policy(numbers_: tuple[str, ...], account: int) -> Strategy:
    return st.builds(
        lambda target, most: json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": most}),
        arn(numbers_, account),
        st.one_of(st.just(3), st.just(3), numbers, odd_text),
    )


@cache
def named(numbers_: tuple[str, ...], account: int) -> dict[str, Strategy]:
    """Values of parameters by name: right ones, but for few that depend on others.

    Parameters that are not here are given by wild requests only.
    """
    names = st.sampled_from((*attributes.READABLE, *attributes.UNSET, "All", ".*", "a.*", "secret"))
    value = st.one_of(
        st.sampled_from(["0", "1", "60", "true", "false", "1024", "262144", "1209600"]),
        numbers.map(str),
        policy(numbers_, account),
    )
    typed = st.one_of(
        st.fixed_dictionaries(
            {
                "DataType": st.sampled_from(["String", "Number", "String.x", "Number.é"]),
                "StringValue": st.sampled_from(["1", "-1e38", "0.5", "1" * 38]),
            }
        ),
        st.fixed_dictionaries(
            {"DataType": st.sampled_from(["Binary", "Binary.x"]), "BinaryValue": st.just("eA==")}
        ),
    )
    trace = {"DataType": st.just("String"), "StringValue": st.just("Root=1")}
    system = st.sampled_from(["All", "SentTimestamp", "AWSTraceHeader", "SenderId"])
    right = {"VisibilityTimeout": st.sampled_from(["0", "1", "30"]), "DelaySeconds": st.just("0")}
    receipt = st.integers(0, 30).map("@receipt-{}@".format)
    return {
        "Attributes": st.one_of(
            st.fixed_dictionaries({}, optional=right),
            st.fixed_dictionaries({"RedrivePolicy": policy(numbers_, account)}, optional=right),
            st.dictionaries(names, value, max_size=4),
        ),
        "AttributeNames": st.lists(st.sampled_from(["All", "QueueArn"]), max_size=2),
        "DelaySeconds": st.integers(0, 2),
        "DestinationArn": arn(numbers_, account),
        "MaxNumberOfMessages": st.integers(1, 10),
        "MaxNumberOfMessagesPerSecond": st.integers(1, 500),
        "MaxResults": st.integers(1, 1_000),
        "MessageAttributeNames": st.lists(names, max_size=5),
        "MessageAttributes": st.dictionaries(st.sampled_from("abcdefghijkl"), typed, max_size=4),
        "MessageBody": st.one_of(*[st.text("abé\U0001f600", min_size=1)] * 5, sized),
        "MessageSystemAttributeNames": st.lists(system, max_size=2),
        "MessageSystemAttributes": st.fixed_dictionaries(
            {}, optional={"AWSTraceHeader": st.fixed_dictionaries(trace)}
        ),
        "QueueName": st.sampled_from(QUEUES),
        "QueueNamePrefix": st.sampled_from(["", "f", "fuzz-", "v"]),
        "QueueUrl": url(numbers_, account),
        "ReceiptHandle": receipt,
        "SourceArn": arn(numbers_, account),
        "TagKeys": st.lists(st.sampled_from("abc"), max_size=51),
        "Tags": st.dictionaries(st.text("abc", min_size=1), st.text("é "), max_size=51),
        "TaskHandle": receipt,
        "VisibilityTimeout": st.integers(0, 30),
        # A wait holds up whoever fuzzes: seldom as long as it may be.
        "WaitTimeSeconds": st.integers(0, 199).map(lambda n: 20 if n == 199 else n // 150),
        "tags": st.dictionaries(st.text("abc", min_size=1), st.text("é "), max_size=5),
    }


@cache
def of_kind(kind: Kind) -> Strategy:
    """A value of the right form that nothing else is known of."""
    return {
        Kind.TEXT: odd_text,
        Kind.WHOLE: numbers,
        Kind.TEXTS: st.lists(odd_text, max_size=12),
        Kind.MAP: st.dictionaries(odd_text, odd_text, max_size=12),
        Kind.TYPED: st.dictionaries(
            odd_text,
            st.dictionaries(
                st.sampled_from(["DataType", "StringValue", "BinaryValue"]),
                st.one_of(odd_text, leaf),
            ),
            max_size=12,
        ),
        Kind.ENTRIES: st.lists(st.dictionaries(odd_text, leaf, max_size=4), max_size=12),
    }[kind]


@st.composite
def given_for(
    draw: Callable[[Strategy], Any],
    wanted: Parameters,
    right: Mapping[str, Strategy],
    wildness: int,
) -> dict[str, Any]:
    """What a request gives.

    Args:
        wildness: How many of ten values are wrong in some way.
    """
    found: dict[str, Any] = {}
    for name, kind in wanted.kinds.items():
        is_known = name in right or kind is Kind.ENTRIES
        if name not in wanted.required and (draw(st.booleans()) or not (is_known or wildness)):
            continue
        dice = draw(st.integers(0, 29))
        if dice >= 3 * wildness:
            if kind is Kind.ENTRIES and wanted.entries is not None:
                entry = given_for(
                    wanted.entries, {**right, "Id": st.text("ab1", min_size=1)}, wildness
                )
                found[name] = draw(st.lists(entry, min_size=1, max_size=11 if wildness else 4))
            else:
                found[name] = draw(right.get(name, of_kind(kind)))
        elif dice % 3:
            found[name] = draw(of_kind(kind) if dice % 3 == 1 else odd)
    if wildness and draw(st.integers(0, 9)) == 0:
        found |= draw(unknown)
    return found


ODD_HEADERS: Final = (
    ("Content-Type", "application/json; charset=utf-16"),
    ("Content-Type", "multipart/form-data"),
    ("Content-Encoding", "gzip"),
    ("Cassieq-Header-A", "\xff"),
    ("Cassieq-Tag", "x"),
    ("Accept", "text/html;q=0," * 500),
    ("Prefer", "wait=1e9"),
    ("X-Amz-Target", "AmazonSQS.DeleteQueue"),
    ("X-Amz-Security-Token", "x"),
    ("X-Forwarded-For", "1.1.1.1, " * 300),
    ("Origin", "null"),
    ("X-Long", "x" * 65_400),
    ("X-Long", "x" * 66_000),
)
WHOS: Final = (*["own"] * 10, "token", "presigned", "forged", "altered", "nobody", "nobody")


@st.composite
def asked(draw: Callable[[Strategy], Any], numbers_: tuple[str, ...]) -> Asked:
    """A request to one of the gateways."""
    gateway = draw(st.sampled_from(["accounts", "accounts", "open"]))
    account = draw(st.integers(0, len(numbers_) - 1))
    wildness = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 1, 5]))
    action = draw(st.sampled_from((*sorted(ACTIONS), *OFTEN)))
    seen = ("0" * 12,) * len(numbers_) if gateway == "open" else numbers_
    right = named((*seen, *numbers_) if gateway == "open" else seen, account)
    given = draw(given_for(ACTIONS[action].parameters, right, wildness))
    if wildness == 5 and draw(st.integers(0, 4)) == 0:
        action = draw(odd_text)
    return Asked(
        gateway=gateway,
        account=account,
        who=draw(st.sampled_from(WHOS)),
        is_json=draw(st.booleans()),
        action=action,
        given=given,
        cut=draw(st.one_of(st.none(), cuts)) if wildness == 5 else None,
        headers=tuple(draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=1 if wildness else 0))),
    )


# --- as bytes -------------------------------------------------------------------------------------

_RECEIPT: Final = re.compile(r"@receipt-(\d+)@")
_LETTERS: Final = re.compile(r"@x(\d+)@")
_RAW: Final = re.compile(r'"@(deep|tiny)(\d+)@"')


def filled(value: Any, receipts: list[str]) -> Any:
    """A value with what stands between ``@``."""
    if isinstance(value, dict):
        return {filled(key, receipts): filled(one, receipts) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, receipts) for one in value]
    if not isinstance(value, str) or "@" not in value:
        return value
    if found := _RECEIPT.fullmatch(value):
        return receipts[int(found[1]) % len(receipts)] if receipts else "none"
    return _LETTERS.sub(lambda found: "x" * int(found[1]), value)


def _raw(found: re.Match[str]) -> str:
    times = int(found[2])
    return "[" * times + "]" * times if found[1] == "deep" else f"[{','.join(['1'] * times)}]"


def as_json(given: Mapping[str, Any]) -> bytes:
    text = _RAW.sub(_raw, json.dumps(given))
    if len(given) == 3:
        text = text[:-1] + "," + text[1:]  # each name twice
    return text.encode()


def as_form(action: str, given: Mapping[str, Any]) -> bytes:
    fields = [("Action", action), *_flat(action, given, "")]
    return urlencode(fields, errors="surrogatepass").encode()


def _flat(action: str, given: Mapping[str, Any], at: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in given.items():
        member = at + protocol._MEMBERS.get(name, name)
        if name == "Entries":
            member = f"{at}{action}RequestEntry"
        if isinstance(value, dict):
            for number, (key, one) in enumerate(value.items(), 1):
                found.append((f"{member}.{number}.Name", key))
                if isinstance(one, dict):
                    found += _flat(action, one, f"{member}.{number}.Value.")
                else:
                    found.append((f"{member}.{number}.Value", str(one)))
        elif isinstance(value, list):
            for number, one in enumerate(value, 1):
                if isinstance(one, dict):
                    found += _flat(action, one, f"{member}.{number}.")
                else:
                    found.append((f"{member}.{number}", str(one)))
        else:
            found.append((at + name, str(value)))
    return found


def changed(body: bytes, cut: tuple[int, int, bytes] | None) -> bytes:
    """A body with some bytes changed."""
    if cut is None:
        return body
    at = cut[0] * len(body) // 1_000
    return body[:at] + cut[2] + body[at + cut[1] :]
