"""What a user installs: the wheel's content, the weight of the core, and that importing it stays cheap."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parent.parent
NOT_IN_THE_CORE = {"torch", "transformers", "tokenizers", "vllm", "ray", "pandas", "matplotlib", "pytest"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, *build, str(REPOSITORY)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_sources_and_their_data(wheel: zipfile.ZipFile) -> None:
    package = REPOSITORY / "src" / "servebench"
    sources = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"servebench/{path.relative_to(package).as_posix()}" for path in sources}
    assert "servebench/py.typed" in wanted
    assert any(name.endswith(".schema.json") for name in wanted), "no JSON schema of summary.json"
    assert wanted <= set(wheel.namelist())


def test_the_wheel_holds_every_shipped_scenario(wheel: zipfile.ZipFile) -> None:
    shipped = {f"servebench/scenarios/{path.name}" for path in (REPOSITORY / "scenarios").glob("*.yaml")}
    assert "servebench/scenarios/chat.yaml" in shipped
    assert shipped <= set(wheel.namelist())


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/", 1)[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"servebench"}


def core(name: str = "servebench", seen: set[str] | None = None) -> Iterator[Distribution]:
    """The distribution `name` and, once each, all that it needs without any extra."""
    seen = set() if seen is None else seen
    seen.add(canonicalize_name(name))
    found = distribution(name)
    yield found
    for requirement in map(Requirement, found.requires or ()):
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and canonicalize_name(requirement.name) not in seen:
            yield from core(requirement.name, seen)


def test_the_core_needs_no_framework() -> None:
    names = {canonicalize_name(found.metadata["Name"]) for found in core()}
    assert {"numpy", "pyarrow", "httpx"} <= names
    assert not names & NOT_IN_THE_CORE


def test_the_core_takes_under_500_mb() -> None:
    files = (Path(str(found.locate_file(file))) for found in core() for file in found.files or ())
    size = sum(path.stat().st_size for path in files if path.is_file())
    assert 50e6 < size < 500e6, f"{size / 1e6:.0f} MB"


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, servebench, servebench.errors, servebench.cli.main;"
        "print(*{'numpy', 'httpx', 'pydantic', 'pyarrow', 'scipy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
