"""Logins and TLS as options: complete or refused, and no secret where somebody could read it."""

from __future__ import annotations

import json
import pickle
import ssl
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options import (
    OPTIONS,
    ConnectionOptions,
    parse_connection,
    parse_read,
    parse_sink,
    parse_source,
)
from cassieq_spark.options.option import Login, TlsOptions
from cassieq_spark.options.values import Secret
from cassieq_spark.store import tls
from tests.fixtures.certificates import Authority

HERE = {"contactPoints": "127.0.0.1", "queue": "orders"}
PASSWORD = "sesame-31c9"  # noqa: S105 - of a test
KEY_PASSWORD = "latch-77e0"  # noqa: S105 - of a test
FULL = {
    "username": "billing",
    "password": PASSWORD,
    "sslCaFile": "/etc/ca.pem",
    "sslCertFile": "/etc/client.pem",
    "sslKeyFile": "/etc/client.key",
    "sslKeyPassword": KEY_PASSWORD,
    "sslVerifyHostname": "false",
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def connection(**given: Any) -> ConnectionOptions:
    return parse_connection({"contactPoints": "127.0.0.1", **given})


def secrets_in(text: str) -> list[str]:
    return [secret for secret in (PASSWORD, KEY_PASSWORD) if secret in text]


# --- the secret itself


@pytest.mark.parametrize("show", [repr, str, "{}".format, "%s".__mod__, lambda one: f"{one!r}"])
def test_a_secret_shows_as_stars_however_it_is_printed(show: Callable[[Secret], str]) -> None:
    assert "***" == show(Secret(PASSWORD))


def test_a_secret_is_equal_by_its_text_and_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(Secret(PASSWORD)))  # noqa: S301 - our own bytes

    assert Secret(PASSWORD) == copy
    assert hash(Secret(PASSWORD)) == hash(copy)
    assert PASSWORD == copy.reveal()
    assert Secret("other") != copy
    assert copy != PASSWORD


def test_a_secret_can_be_no_json() -> None:
    with pytest.raises(TypeError):
        json.dumps({"password": Secret(PASSWORD)})


# --- the parsed values


@pytest.mark.parametrize("parse", [parse_source, parse_read, parse_sink])
def test_every_reader_and_writer_takes_a_login_and_tls(parse: Callable[[Any], Any]) -> None:
    found = parse({**HERE, **FULL}).connection

    assert Login(username="billing", password=Secret(PASSWORD)) == found.login
    assert (
        TlsOptions(
            ca_file="/etc/ca.pem",
            cert_file="/etc/client.pem",
            key_file="/etc/client.key",
            key_password=Secret(KEY_PASSWORD),
            verifies_hostname=False,
        )
        == found.tls
    )


def test_without_options_there_is_neither_login_nor_tls() -> None:
    assert (None, None) == (connection().login, connection().tls)


def test_a_ca_file_alone_is_tls_that_verifies_host_names() -> None:
    assert (
        TlsOptions(ca_file="ca.pem", verifies_hostname=True) == connection(sslCaFile="ca.pem").tls
    )


def test_a_path_may_be_a_path_object(tmp_path: Path) -> None:
    assert TlsOptions(ca_file=str(tmp_path)) == connection(sslCaFile=tmp_path).tls


def test_options_with_secrets_are_one_key_of_sessions_and_another_password_another() -> None:
    options = connection(**FULL)

    assert {options: 1} == {pickle.loads(pickle.dumps(options)): 1}  # noqa: S301 - our own bytes
    assert options != connection(**{**FULL, "password": "other"})


@pytest.mark.parametrize("parse", [parse_source, parse_read, parse_sink])
def test_no_repr_of_options_or_of_their_dict_holds_a_secret(parse: Callable[[Any], Any]) -> None:
    options = parse({**HERE, **FULL})

    shown = f"{options!r} {options} {asdict(options)} {[options]}"

    assert "password=***" in shown
    assert [] == secrets_in(shown)


# --- where they come from


def test_variables_keep_secrets_out_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSIEQ_USERNAME", "billing")
    monkeypatch.setenv("CASSIEQ_PASSWORD", PASSWORD)
    monkeypatch.setenv("CASSIEQ_SSL_CA_FILE", "ca.pem")
    monkeypatch.setenv("CASSIEQ_SSL_CERT_FILE", "client.pem")
    monkeypatch.setenv("CASSIEQ_SSL_KEY_PASSWORD", KEY_PASSWORD)

    found = connection()

    assert Login(username="billing", password=Secret(PASSWORD)) == found.login
    assert found.tls is not None
    assert ("ca.pem", "client.pem") == (found.tls.ca_file, found.tls.cert_file)
    assert Secret(KEY_PASSWORD) == found.tls.key_password


def test_every_secret_has_a_name_that_spark_blanks() -> None:
    # Of "(?i)secret|password|token|access[.]?key", Spark's own, the part that a user keeps.
    secrets = [option.name for option in OPTIONS if option.is_secret]

    assert ["password", "sslKeyPassword"] == secrets
    assert [] == [name for name in secrets if "password" not in name.lower()]


# --- what is refused


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"username": "billing"}, r"'username' is 'billing', but 'password' is not set"),
        ({"password": PASSWORD}, r"'password' is \*\*\*, but 'username' is not set"),
        ({"sslCertFile": "c.pem"}, r"'ssl_cert_file' is 'c\.pem', but 'ssl_ca_file' is not set"),
        (
            {"sslCaFile": "ca.pem", "sslKeyFile": "c.key"},
            r"'ssl_key_file' is 'c\.key', but 'ssl_cert_file' is not set",
        ),
        (
            {"sslCaFile": "ca.pem", "sslKeyPassword": KEY_PASSWORD},
            r"'ssl_key_password' is \*\*\*, but 'ssl_cert_file' is not set",
        ),
        (
            {"sslVerifyHostname": False},
            r"'ssl_verify_hostname' is False, but 'ssl_ca_file' is not set",
        ),
        ({"username": "b", "password": ""}, r"'password' of connect\(\) is \*\*\*, allowed: 1 to"),
        ({"username": "b", "password": PASSWORD + "\0"}, r"is \*\*\*, allowed: .* no NUL"),
        ({"username": "b", "password": PASSWORD * 100}, r"is \*\*\*, allowed: 1 to 1,000"),
        ({"username": "b", "password": 7}, r"is \*\*\*, allowed"),
        ({"username": " b", "password": PASSWORD}, r"'username' of connect\(\) is ' b', allowed"),
        ({"username": "b", "PASSWORD": PASSWORD, "password": PASSWORD}, r"given twice, as"),
        ({"sslCaFile": ""}, r"'ssl_ca_file' of connect\(\) is '', allowed: the path of a file"),
    ],
)
def test_what_is_not_complete_or_not_allowed_is_refused_without_its_secret(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionInvalid, match=says) as refused:
        connection(**given)

    assert [] == secrets_in("".join(traceback.format_exception(refused.value)))


def test_a_misspelt_secret_is_refused_by_its_name_alone() -> None:
    with pytest.raises(ValueError, match="Did you mean 'password'") as refused:
        connection(username="b", pasword=PASSWORD)

    assert [] == secrets_in(str(refused.value))


# --- certificate files: looked at before anything is connected to


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("own")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsOptions:
    """All as it should be."""
    certificate, key = authority.sign("client").write(tmp_path, "client", password=KEY_PASSWORD)
    return TlsOptions(
        ca_file=authority.write(tmp_path / "ca.pem"),
        cert_file=certificate,
        key_file=key,
        key_password=Secret(KEY_PASSWORD),
    )


def test_a_context_believes_the_ca_file_alone_and_no_old_protocol(files: TlsOptions) -> None:
    context = tls.context(files)

    assert (ssl.CERT_REQUIRED, True) == (context.verify_mode, context.check_hostname)
    assert ssl.TLSVersion.TLSv1_2 == context.minimum_version
    assert [((("commonName", "own"),),)] == [one["subject"] for one in context.get_ca_certs()]


def test_a_key_may_be_in_the_file_of_its_certificate(
    authority: Authority, tmp_path: Path, files: TlsOptions
) -> None:
    certificate, key = authority.sign("client").write(tmp_path, "both")
    (tmp_path / "both.pem").write_bytes(
        (tmp_path / "both.pem").read_bytes() + (tmp_path / "both.key").read_bytes()
    )
    (tmp_path / "both.key").unlink()

    tls.context(TlsOptions(ca_file=files.ca_file, cert_file=certificate))

    with pytest.raises(
        OptionInvalid, match=r"'ssl_key_file': the file '.*both\.key' cannot be read"
    ):
        tls.context(TlsOptions(ca_file=files.ca_file, cert_file=certificate, key_file=key))


@pytest.mark.parametrize(
    ("option", "field"),
    [("ssl_ca_file", "ca_file"), ("ssl_cert_file", "cert_file"), ("ssl_key_file", "key_file")],
)
def test_a_file_that_is_missing_or_of_another_kind_is_named_with_its_option(
    files: TlsOptions, tmp_path: Path, option: str, field: str
) -> None:
    garbage = tmp_path / "notes.txt"
    garbage.write_text("nothing of the kind", encoding="utf-8")

    with pytest.raises(OptionInvalid, match=rf"'{option}': the file '.*gone\.pem' cannot be read"):
        tls.context(_with(files, field, str(tmp_path / "gone.pem")))
    with pytest.raises(OptionInvalid, match=rf"'{option}': .* in '.*notes\.txt'") as refused:
        tls.context(_with(files, field, str(garbage)))

    assert [] == secrets_in("".join(traceback.format_exception(refused.value)))


def test_a_key_of_another_certificate_is_named_with_both_files(
    authority: Authority, files: TlsOptions, tmp_path: Path
) -> None:
    _, key = authority.sign("client").write(tmp_path, "other")

    with pytest.raises(
        OptionInvalid, match=r"'.*other\.key' does not belong to .* '.*client\.pem'"
    ):
        tls.context(_with(files, "key_file", key))


def test_an_encrypted_key_without_its_password_asks_no_terminal(files: TlsOptions) -> None:
    with pytest.raises(OptionInvalid, match="is encrypted, and 'ssl_key_password' is not set"):
        tls.context(_with(files, "key_password", None))


def test_a_wrong_password_of_a_key_is_refused_and_not_shown(files: TlsOptions) -> None:
    wrong = "guess-02ab"

    with pytest.raises(OptionInvalid, match="can be read with this 'ssl_key_password'") as refused:
        tls.context(_with(files, "key_password", Secret(wrong)))

    assert wrong not in "".join(traceback.format_exception(refused.value))


def _with(files: TlsOptions, field: str, value: object) -> TlsOptions:
    kept = {name: getattr(files, name) for name in TlsOptions.__slots__}
    return TlsOptions(**{**kept, field: value})
