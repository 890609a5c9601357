"""The first request of a kind takes no longer than others: what it needs is there by then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cassieq_spark.server.serve import _make_ahead
from cassieq_spark.server.ui import render

MODULES = ("accounts.admin", "accounts.authenticator", "accounts.tokens")
IN_A_PROGRAM = """
import sys
from cassieq_spark.server import serve
serve._make_ahead(has_accounts={has_accounts})
print(*(name for name in {modules} if "cassieq_spark." + name in sys.modules))
"""


@pytest.mark.parametrize("has_accounts", [False, True])
def test_what_checks_accounts_is_loaded_before_somebody_asks(*, has_accounts: bool) -> None:
    program = IN_A_PROGRAM.format(has_accounts=has_accounts, modules=MODULES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert list(MODULES) * has_accounts == done.stdout.decode().split()


def test_templates_are_compiled_before_somebody_opens_the_page() -> None:
    render._templates.cache_clear()
    _make_ahead(has_accounts=False)
    made = render._templates()
    assert made.cache is not None
    assert {one[1] for one in made.cache} == set(made.list_templates(extensions=["html"]))
