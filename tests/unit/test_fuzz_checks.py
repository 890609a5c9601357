"""What the fuzzer holds of each answer: wrong ones are seen, right ones are not."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from cassieq_spark.server.operations import ACTIONS
from tests.fuzz.book import Book, framed, hidden_forms, wrong
from tests.fuzz.grammar import named

SECRET = "only-for-acme-0123456789"  # noqa: S105 - of nobody
ONE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize("status", [500, 501, 502, 504])
def test_a_status_of_a_fault_is_wrong(status: int) -> None:
    assert f"status {status}" == wrong(status, b"", [])


@pytest.mark.parametrize("status", [200, 400, 403, 503])
def test_other_statuses_are_right(status: int) -> None:
    assert wrong(status, b'{"Successful": []}', hidden_forms(SECRET)) is None


def test_a_fault_in_an_entry_is_wrong_although_the_batch_is_answered() -> None:
    assert wrong(200, b'{"Failed": [{"Code": "InternalFailure"}]}', []) is not None


@pytest.mark.parametrize("shown", [SECRET.encode(), base64.b64encode(SECRET.encode())])
def test_a_secret_is_found_as_text_and_as_base64(shown: bytes) -> None:
    assert "data of another account" == wrong(200, b"<a>" + shown + b"</a>", hidden_forms(SECRET))


@pytest.mark.parametrize(
    "got", [b"", ONE, ONE + ONE, ONE + ONE[:-1], ONE + ONE[:25], ONE + ONE[:5], ONE[:12]]
)
def test_whole_answers_are_right_and_the_last_may_be_cut_off(got: bytes) -> None:
    assert framed(got, ["GET", "POST"]) is None


def test_an_answer_to_head_has_no_body() -> None:
    head = ONE.removesuffix(b"ok")
    assert framed(head + ONE, ["HEAD", "GET"]) is None


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        (ONE * 3, "more answers than requests"),
        (ONE + b"x", "no answer"),
        (b"\r\n" + ONE, "no answer"),
        (ONE[:-1] + ONE, "no answer"),
    ],
)
def test_bytes_that_are_no_answer_are_wrong(got: bytes, problem: str) -> None:
    assert problem == framed(got, ["GET", "POST"])


def test_the_grammar_knows_no_parameter_that_no_action_has() -> None:
    wanted = [one.parameters for one in ACTIONS.values()]
    wanted += [one.entries for one in wanted if one.entries]
    assert {*named(("1", "2"), 0)} <= {name for one in wanted for name in one.kinds}


def test_a_log_is_read_once_and_faults_in_it_are_found(tmp_path: Path) -> None:
    book, log = Book(tmp_path), tmp_path / "log"
    log.write_text("Listening on http://x. \nevent=request_failed request=12\nhalf a li")
    book.read_log(log)
    book.read_log(log)
    assert [1] == list(book.findings.values())
