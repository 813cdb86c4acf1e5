"""Limits of control groups, of both versions, from trees of files like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from servebench.telemetry.cgroup import Cgroup
from servebench.telemetry.files import Absent

UNLIMITED_V1 = "9223372036854771712"


def tree(root: Path, membership: str, files: dict[str, str]) -> Cgroup:
    for name, content in {"proc/self/cgroup": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Cgroup(root)


def v2(root: Path, path: str, files: dict[str, str]) -> Cgroup:
    return tree(root, f"0::{path}\n", {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n", **files})


def test_version_2(tmp_path: Path) -> None:
    cgroup = v2(
        tmp_path,
        "/pod/app",
        {"sys/fs/cgroup/pod/app/cpu.max": "150000 100000\n", "sys/fs/cgroup/pod/app/memory.max": "1073741824\n"},
    )
    assert (cgroup.version, cgroup.cpu_cores, cgroup.memory_bytes) == (2, 1.5, 1 << 30)


def test_the_least_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    cgroup = v2(
        tmp_path,
        "/pod/app",
        {
            "sys/fs/cgroup/pod/app/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/app/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.max": "4096\n",
        },
    )
    assert (cgroup.cpu_cores, cgroup.memory_bytes) == (0.5, 4096)


def test_a_path_of_the_host_inside_a_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    cgroup = v2(tmp_path, "/system.slice/docker-1", {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert cgroup.cpu_cores == 2.0


def test_version_1(tmp_path: Path) -> None:
    cgroup = tree(
        tmp_path,
        "4:memory:/app\n2:cpu,cpuacct:/app\n0::/\n",
        {
            "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "25000\n",
            "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "8192\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
        },
    )
    assert (cgroup.version, cgroup.cpu_cores, cgroup.memory_bytes) == (1, 0.25, 8192)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/cpu.max": "max 100000\n"}),
        ("0::/\n", {"sys/fs/cgroup/cgroup.controllers": ""}),
        (
            "2:cpu:/\n4:memory:/\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
            },
        ),
    ],
)
def test_no_limit_is_absent_and_not_a_number(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    cgroup = tree(tmp_path, membership, files)
    with pytest.raises(Absent, match="no limit is set"):
        _ = cgroup.cpu_cores
    with pytest.raises(Absent, match="no limit is set"):
        _ = cgroup.memory_bytes


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="cgroup: No such file"):
        _ = Cgroup(tmp_path).version
