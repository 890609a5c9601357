"""Errors about accounts, and about who asks and what they may do."""

from __future__ import annotations

from cassieq_spark.errors.base import CassieqError


class AccountError(CassieqError):
    """Errors about an account or its keys, as their administrator meets them."""


class AccountNotFound(AccountError):
    """No account has that name."""

    code = "account_not_found"
    meaning = "The keyspace has no account of that name."
    remedy = "Create the account, or look for a misspelt name: cassieq account list."


class AccountExists(AccountError):
    """An account of that name exists already."""

    code = "account_exists"
    meaning = "An account of that name exists already, so it was not created."
    remedy = "Make a further key for it with cassieq account new-key, or choose another name."


class AccountInUse(AccountError):
    """The account still has queues."""

    code = "account_in_use"
    meaning = "An account that has queues is not deleted without them."
    remedy = "Delete its queues first, or give --with-queues to delete them too."


class KeyNotFound(AccountError):
    """The account has no key of that id."""

    code = "key_not_found"
    meaning = "The account has no key of that id."
    remedy = "Look for the id with cassieq account keys."


class TooManyKeys(AccountError):
    """The account has as many keys as it may have."""

    code = "too_many_keys"
    meaning = "An account has a limited number of keys, and this one has all of them."
    remedy = "Delete a key that nobody uses. The listing of keys says when each was last used."


class MasterKeyInvalid(AccountError):
    """The master key's file is missing, unsafe, malformed, or of another installation."""

    code = "master_key_invalid"
    meaning = "The file of the master key cannot be used."
    remedy = "Do what the message says. cassieq account master-key makes such a file."


class AccessError(CassieqError):
    """Errors about who asks, and what they may do."""


class AuthenticationFailed(AccessError):
    """A request does not prove who sent it.

    Attributes:
        reason: ``missing``, ``malformed``, ``unsupported``, ``skewed``, ``expired``, ``refused``
            (the key is unknown or disabled, which are not told apart, or did not sign the token)
            or ``signature`` (the key is known, and did not sign the request).
    """

    code = "authentication_failed"
    meaning = "A request has no signature or token, or one that is not accepted."
    remedy = "Sign the request with a key of an account, or use a token that has not expired."

    def __init__(self, message: str, *, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


class RequestTimeSkewed(AuthenticationFailed):
    """A request was signed at another time than now, by more than 15 minutes."""

    code = "request_time_skewed"
    meaning = "The time in a signed request differs from the server's by more than 15 minutes."
    remedy = "Set the clock of the machine that signs. Then sign the request again."

    def __init__(self, message: str, *, reason: str = "skewed") -> None:
        super().__init__(message, reason=reason)


class AccessDenied(AccessError):
    """A key or token lacks a right; ``right`` and ``queue`` name what is missing."""

    code = "access_denied"
    meaning = "The key or token does not have the right that the request needs."
    remedy = "Use a key that has the right, or ask whoever administers the account."

    def __init__(self, message: str, *, right: str = "", queue: str = "") -> None:
        super().__init__(message)
        self.right = right
        self.queue = queue
