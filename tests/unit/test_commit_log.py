"""The embedded node's commit log: direct I/O only where no write is cut short."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cassieq_spark.embedded import config
from cassieq_spark.embedded.machine import file_system

SHM = Path("/dev/shm")  # noqa: S108 - it is asked, and not written to


def yaml(directory: Path, **settings: object) -> dict[str, object]:
    return config.NodeConfig(
        directory=directory,
        index=0,
        addresses=("127.0.0.1",),
        native_port=1,
        storage_port=2,
        heap="1g",
        settings=settings,
    ).cassandra_yaml()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    return lambda name: monkeypatch.setattr(config, "file_system", lambda _: name)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("ext4", "auto"),
        ("tmpfs", "legacy"),
        ("xfs", "legacy"),
        ("overlay", "legacy"),
        (None, "legacy"),
    ],
)
def test_only_a_file_system_that_writes_all_or_nothing_gets_direct_io(
    name: str | None, mode: str, on: Callable[[str | None], None], tmp_path: Path
) -> None:
    on(name)
    assert mode == yaml(tmp_path)["commitlog_disk_access_mode"]
    assert (
        "direct"
        == yaml(tmp_path, commitlog_disk_access_mode="direct")["commitlog_disk_access_mode"]
    )  # who asks for one gets it


def test_a_file_system_is_known_by_its_device(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    lines = (
        "1 0 0:999 / /elsewhere rw - tmpfs x rw",
        f"2 0 {os.major(number)}:{os.minor(number)} / / rw shared:1 master:2 - zfs /dev/vda rw",
    )
    mounts.write_text("\n".join(lines), "utf-8")

    assert "zfs" == file_system(tmp_path / "not" / "yet", mounts=mounts)
    mounts.write_text(lines[0], "utf-8")
    assert file_system(tmp_path, mounts=mounts) is None
    assert file_system(tmp_path, mounts=tmp_path / "none") is None  # as on macOS


@pytest.mark.skipif(not SHM.is_dir(), reason="this machine has no /dev/shm")
def test_memory_is_told_from_a_disk() -> None:
    assert "tmpfs" == file_system(SHM)
