"""Ids and secrets of keys, in the form that SDKs of AWS take; the master key that encrypts them.

AES-256-GCM rather than Fernet: it takes associated data. Account and key id are authenticated with
each secret, so a secret that somebody moves to another key's row does not decrypt there.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
import string
from pathlib import Path
from typing import Final, NoReturn
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cassieq_spark.errors import MasterKeyInvalid
from cassieq_spark.options.values import Secret

_PREFIX: Final = "CQAK"
_ID_SIGNS: Final = string.ascii_uppercase + "234567"
_SECRET_SIGNS: Final = string.ascii_letters + string.digits

KEY_ID: Final = re.compile(rf"{_PREFIX}[{_ID_SIGNS}]{{16}}")
"""Ids of another form are unknown without a look into any table."""


def new_key_id() -> str:
    """Return a new id of 20 characters, 80 of its bits random."""
    return _PREFIX + "".join(secrets.choice(_ID_SIGNS) for _ in range(16))


def new_secret() -> Secret:
    """Return 40 random characters, 238 bits; letters and digits, which no shell or URL alters."""
    return Secret("".join(secrets.choice(_SECRET_SIGNS) for _ in range(40)))


# --- the master key -------------------------------------------------------------------------------

KEY_BYTES: Final = 32
_FORMAT: Final = b"\x01"
_PRINT_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_LONGEST_FILE: Final = 4_096


def derive(secret: bytes, purpose: str) -> bytes:
    """Derive a key of 32 bytes for one purpose (HKDF with SHA-256)."""
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode())
    return hkdf.derive(secret)


class MasterKey:
    """Encrypts and decrypts secrets. It does not pickle and does not show its bytes."""

    __slots__ = ("_keys", "_newest")

    def __init__(self, *keys: bytes) -> None:
        """Take keys of 32 bytes: the first encrypts, all decrypt."""
        # A fingerprint before each secret finds its key, and tells another key from altered text.
        self._keys = {
            derive(key, "cassieq fingerprint")[:_PRINT_BYTES]: AESGCM(
                derive(key, "cassieq secrets of keys")
            )
            for key in keys
        }
        self._newest = next(iter(self._keys))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MasterKey:
        """Read a file of 32 random bytes in base64; further lines are former keys.

        As ssh does with its keys, it refuses a file of this user that others can read. A file of
        another user, such as a mounted secret of root's, is whoever mounted it's to protect.

        Raises:
            MasterKeyInvalid: Names the file and what is wrong; never what is in it.
        """
        try:
            with Path(path).open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(_LONGEST_FILE + 1)
        except (OSError, ValueError) as error:
            raise MasterKeyInvalid(
                f"the master key file {path} cannot be read: {_why(error)}. Name another "
                "file, or make one with: cassieq account master-key --out FILE"
            ) from error
        is_open = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if hasattr(os, "getuid") and status.st_uid == os.getuid() and is_open:
            raise MasterKeyInvalid(
                f"the master key file {path} has the mode {stat.S_IMODE(status.st_mode):04o}, so "
                f"others than its owner can use it. Run: chmod 600 {path}"
            )
        return cls(*_parse(path, content))

    def seal(self, secret: Secret, *, account_id: UUID, key_id: str) -> bytes:
        """Encrypt the secret of a key."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._keys[self._newest].encrypt(
            nonce, secret.reveal().encode(), _bound_to(account_id, key_id)
        )
        return _FORMAT + self._newest + nonce + sealed

    def unseal(self, sealed: bytes, *, account_id: UUID, key_id: str) -> Secret:
        """Decrypt the secret of a key.

        Raises:
            MasterKeyInvalid: It was encrypted under another master key, moved, or altered.
        """
        at = len(_FORMAT)
        print_of, rest = sealed[at : at + _PRINT_BYTES], sealed[at + _PRINT_BYTES :]
        cipher = self._keys.get(print_of)
        if not sealed.startswith(_FORMAT) or cipher is None:
            raise MasterKeyInvalid(
                f"the secret of key {key_id} was encrypted under another master key. Use the file "
                "that the key was made with, or add its line to this one"
            )
        nonce, text = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
        try:
            return Secret(cipher.decrypt(nonce, text, _bound_to(account_id, key_id)).decode())
        except (InvalidTag, ValueError) as error:
            raise MasterKeyInvalid(
                f"the stored secret of key {key_id} was altered, or moved from another key. Delete "
                "the key, and make another one"
            ) from error

    def __repr__(self) -> str:
        return "MasterKey(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a master key does not leave its process")


def write_new(path: str | os.PathLike[str]) -> None:
    """Make a file with a new master key, which only its owner can read.

    Raises:
        MasterKeyInvalid: The file exists already, or cannot be written.
    """
    text = base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n"
    try:
        # O_EXCL: an existing key is never lost, and no link is followed.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.unlink(path)  # noqa: PTH108 - it may be no Path; half a key is in nobody's way
                raise
    except (OSError, ValueError) as error:
        raise MasterKeyInvalid(
            f"the master key file {path} was not made: {_why(error)}. An existing file "
            "is not replaced; name another one"
        ) from error


def _why(error: OSError | ValueError) -> str:
    """Return why a file cannot be used. A path with a null character is a ValueError."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not a path"


def _parse(path: object, content: bytes) -> list[bytes]:
    try:
        keys = [base64.b64decode(line, validate=True) for line in content.split()]
    except (binascii.Error, ValueError):
        keys = []  # raised below, without the cause: it could quote the key
    if not keys or any(len(key) != KEY_BYTES for key in keys) or len(content) > _LONGEST_FILE:
        raise MasterKeyInvalid(
            f"the master key file {path} does not hold {KEY_BYTES} random bytes in base64, one key "
            "a line. Make one with: cassieq account master-key --out FILE"
        )
    return keys


def _bound_to(account_id: UUID, key_id: str) -> bytes:
    return b"cassieq account key\0" + account_id.bytes + key_id.encode()
