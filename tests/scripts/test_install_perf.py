"""scripts/install-perf with an apt that only writes down what it is asked, on machines that have no perf."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-perf"
PERF = """#!/bin/sh
[ "$1" = --version ] && echo perf version 9.9 || exit $REFUSES
"""
APT = """#!/bin/sh
echo "$@" >> "$CALLS"
for package in "$@"; do :; done
case "$*" in
    *--simulate*) case " $OFFERED " in *" $package "*) exit 0 ;; *) exit 100 ;; esac ;;
    *install*) test -n "$BROKEN" || { printf %s "$PERF" > "$BIN/perf"; chmod +x "$BIN/perf"; } ;;
esac
"""
USED = ("bash", "sh", "uname", "mktemp", "rm", "grep", "true", "chmod")

pytestmark = pytest.mark.skipif(
    any(Path("/").glob("usr/bin/perf_*")) or any(Path("/").glob("usr/lib/linux-tools*/**/perf")),
    reason="a perf lies in one of the places that the script looks into",
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine with little on its PATH: what the script uses, an apt, and a user that is root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in USED:
        (folder / name).symlink_to(shutil.which(name) or name)
    executable(folder / "apt-get", APT)
    executable(folder / "id", "#!/bin/sh\necho 0\n")
    return {
        "PATH": str(folder),
        "BIN": str(folder),
        "CALLS": str(tmp_path / "calls"),
        "OFFERED": "linux-perf",
        "BROKEN": "",
        "PERF": PERF,
        "REFUSES": "0",
    }


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def install(environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=environment | more, capture_output=True, text=True, timeout=30)


def installed(environment: dict[str, str]) -> list[str]:
    path = Path(environment["CALLS"])
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[-1] for line in lines if " install " in line and "--simulate" not in line]


def test_debian_has_linux_perf_and_a_second_run_has_nothing_to_do(environment: dict[str, str]) -> None:
    first = install(environment)
    assert first.returncode == 0, first.stderr
    assert "perf version 9.9" in first.stdout
    assert installed(environment) == ["linux-perf"]
    second = install(environment)
    assert second.returncode == 0
    assert "in place" in second.stdout
    assert installed(environment) == ["linux-perf"]


def test_ubuntu_has_linux_tools(environment: dict[str, str]) -> None:
    assert install(environment, OFFERED="linux-tools-generic").returncode == 0
    assert installed(environment) == ["linux-tools-generic"]


def test_those_of_the_running_kernel_come_first(environment: dict[str, str]) -> None:
    mine = f"linux-tools-{os.uname().release}"
    assert install(environment, OFFERED=f"{mine} linux-tools-generic").returncode == 0
    assert installed(environment) == [mine]


def test_what_does_not_run_is_said(environment: dict[str, str]) -> None:
    result = install(environment, BROKEN="yes")
    assert result.returncode == 1
    assert "no perf runs here" in result.stderr


def test_a_distribution_without_it_is_said(environment: dict[str, str]) -> None:
    result = install(environment, OFFERED="")
    assert result.returncode == 1
    assert "apt offers neither" in result.stderr


def test_without_apt_it_says_what_to_install(environment: dict[str, str]) -> None:
    Path(environment["BIN"], "apt-get").unlink()
    result = install(environment)
    assert result.returncode == 1
    assert "by this system's means" in result.stderr


def test_without_root_it_says_so_and_changes_nothing(environment: dict[str, str]) -> None:
    executable(Path(environment["BIN"], "id"), "#!/bin/sh\necho 1000\n")
    result = install(environment)
    assert result.returncode == 1
    assert "needs root" in result.stderr
    assert not Path(environment["CALLS"]).exists()


def test_a_machine_that_does_not_let_it_record_is_told(environment: dict[str, str]) -> None:
    result = install(environment, REFUSES="255")
    assert result.returncode == 0
    assert "may not record here" in result.stdout
