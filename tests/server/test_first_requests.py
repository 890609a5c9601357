"""The first request of a kind takes no longer than others: what it needs is there by then."""

from __future__ import annotations

import subprocess
import sys

from cassieq_spark.server.serve import make_ahead
from cassieq_spark.server.ui import page

MODULES = ("accounts.admin", "accounts.authenticator", "accounts.tokens")
IN_A_PROGRAM = """
import sys
import cassieq_spark.server.serve
print(*(name for name in {modules} if "cassieq_spark." + name in sys.modules))
"""


def test_what_checks_accounts_is_loaded_before_somebody_asks() -> None:
    program = IN_A_PROGRAM.format(modules=MODULES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert list(MODULES) == done.stdout.decode().split()


def test_templates_are_compiled_before_somebody_opens_the_page() -> None:
    page._templates.cache_clear()
    make_ahead()
    made = page._templates()
    assert made.cache is not None
    assert {one[1] for one in made.cache} == set(made.list_templates(extensions=["html"]))
