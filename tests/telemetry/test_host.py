"""The description of the machine: right where it can be checked, silent about persons, with a reason for every gap."""

from __future__ import annotations

import getpass
import json
import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest

from servebench.telemetry import host
from servebench.telemetry.host import environment


def nulls(description: dict[str, object]) -> set[str]:
    return {
        f"{group}.{name}"
        for group, values in description.items()
        if isinstance(values, dict) and group != "absent"
        for name, value in values.items()
        if value is None
    }


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    path = tmp_path / "secret-folder"
    path.mkdir()
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", path, *command], check=True)
    return path


def test_every_null_has_a_reason_and_every_reason_a_null() -> None:
    description = environment()
    assert nulls(description) == set(description["absent"])
    assert all(description["absent"].values())


def test_it_is_json_and_names_neither_host_nor_user_nor_folder(repository: Path) -> None:
    text = json.dumps(environment(repository), allow_nan=False)
    assert "secret-folder" not in text
    assert str(Path.home()) not in text
    names = {socket.gethostname(), getpass.getuser()} - {"root", "localhost", "vm"}
    assert not [name for name in names if f'"{name}"' in text]


def test_what_python_knows_too() -> None:
    description = environment()
    assert description["cpu"]["logical"] == os.cpu_count()
    assert description["limits"]["fds_soft"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert description["packages"]["pyarrow"]


def test_a_package_that_is_missing_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PACKAGES", ("no-such-package",))
    description = environment()
    assert description["packages"] == {"no-such-package": None}
    assert description["absent"]["packages.no-such-package"] == "not installed"


def test_the_revision_of_a_repository(repository: Path) -> None:
    head = subprocess.run(["git", "-C", repository, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (repository / "file").write_text("a")
    assert environment(repository)["git"] == {"revision": head.stdout.strip(), "modified": False}
    subprocess.run(["git", "-C", repository, "add", "file"], check=True)
    assert environment(repository)["git"]["modified"] is True


def test_no_repository_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    description = environment(tmp_path)
    assert description["git"] == {"revision": None, "modified": None}
    assert "not in a git repository" in description["absent"]["git.revision"]
    assert environment()["absent"]["git.revision"] == "no repository was asked for"


def test_no_git_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment(tmp_path)["absent"]["git.revision"] == "git is not installed"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example CPU 9000\nflags\t\t: fpu hypervisor sse\n",
            "proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n",
            "etc/os-release": 'NAME="x"\nPRETTY_NAME="Example OS 1"\n',
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4200000\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "sys/class/dmi/id/product_name": "Cloud Machine\n",
            ".dockerenv": "",
        },
    )
    description = environment(root=root)
    assert description["cpu"]["model"] == "Example CPU 9000"
    assert (description["cpu"]["governor"], description["cpu"]["max_mhz"]) == ("powersave", 4200)
    assert description["memory"] == {"total_bytes": 1_024_000, "free_bytes": 512_000}
    assert description["clock"]["source"] == "hpet"
    system = description["system"]
    assert (system["distribution"], system["product"]) == ("Example OS 1", "Cloud Machine")
    assert (system["container"], system["hypervisor"]) == ("docker", True)


def test_an_empty_machine_is_all_reasons(tmp_path: Path) -> None:
    description = environment(root=tmp_path)
    assert description["cpu"]["model"] is None
    assert description["absent"]["cpu.model"] == "cpuinfo: No such file or directory"
    assert description["absent"]["system.hypervisor"] == "cpuinfo: No such file or directory"
    assert nulls(description) == set(description["absent"])


def test_a_processor_that_does_not_say_is_absent(tmp_path: Path) -> None:
    description = environment(root=put(tmp_path, {"proc/cpuinfo": "processor: 0\n"}))
    assert description["absent"]["cpu.model"] == "cpuinfo does not say"


@pytest.mark.parametrize(
    ("mark", "variables", "expected"),
    [
        ("run/.containerenv", {}, "podman"),
        (None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        (None, {}, None),
    ],
)
def test_containers_leave_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str | None, variables: dict[str, str], expected: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    root = put(tmp_path, {mark: ""} if mark else {})
    assert environment(root=root)["system"]["container"] == expected
