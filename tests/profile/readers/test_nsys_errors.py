"""Files that are no exports, or broken ones: one line that says what is the matter."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsys_files import GENERATIONS, NsysFile
from servebench.profile.readers.nsys import read_nsys

Change = tuple[int, int, int]  # page, place, byte


def refusal(path: Path) -> str:
    """What is said of a file; one line, that names it."""
    with pytest.raises(ValueError, match=r".") as refused:
        read_nsys(path)
    text = str(refused.value)
    assert str(path) in text
    assert "\n" not in text
    return text.replace(str(path), "FILE")


@pytest.fixture(scope="module", params=GENERATIONS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An export of many pages, whose kernels' tree has inner ones."""
    file = NsysFile(request.param)
    for at in range(15_000):
        file.kernel("k", at, at + 1)
    return file.write(tmp_path_factory.mktemp("exports") / "a.sqlite").read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An export of a few pages, with rows in most tables."""
    file = NsysFile("3.13")
    for at in range(100):
        file.kernel(f"k{at % 7}", at, at + 1, launch=(at, at + 1))
        file.copy("HtoD", at, at + 1)
        file.range(f"r{at}", at, None if at % 9 else at + 1, registered=at % 2 == 0)
        file.sync(at, at + 1)
        file.memory(at, 1)
        file.diagnostic(f"hm {at}")
    return file.write(tmp_path_factory.mktemp("exports") / "a.sqlite").read_bytes()


@pytest.fixture
def path(whole: bytes, tmp_path: Path) -> Path:
    """That export, to be broken."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole)
    return path


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.sqlite") == "FILE cannot be read: No such file or directory"


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b'{"traceEvents": []}' * 20])
def test_no_sqlite_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    assert refusal(path) == "FILE is not an SQLite file"


def test_a_report_must_be_exported_first(tmp_path: Path) -> None:
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"whatever")
    assert refusal(path) == "FILE is a report of nsys: export it first: nsys export --type sqlite a.nsys-rep"


def test_an_sqlite_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE cookies (name TEXT)")
    lack = "it has no META_DATA_EXPORT and no StringIds"
    assert refusal(path) == f"FILE is an SQLite file, but no export of Nsight Systems: {lack}"


def test_a_truncated_file(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[: len(whole) // 2])
    pages = len(whole) // 4096
    assert refusal(path) == f"FILE is truncated: it has {pages // 2} of its {pages} pages"


def test_columns_that_are_missing_are_named(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for old in ("correlationId", "streamId"):
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN {old} TO x{old}")
    lack = "its table CUPTI_ACTIVITY_KIND_KERNEL lacks the columns streamId, correlationId"
    assert refusal(path) == f"FILE: {lack}"


@pytest.mark.parametrize("garbage", [b"\0", b"\xff", b"\x0d\x01\x02\x03"])
@pytest.mark.parametrize("where", ["root", "middle"])
def test_a_damaged_table_is_never_read_as_rows(path: Path, whole: bytes, garbage: bytes, where: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        kernels = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        (root,) = database.execute(kernels).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    at = (root - 1) * size if where == "root" else len(whole) // size // 2 * size  # nearly all pages are of kernels
    path.write_bytes(whole[:at] + (garbage * size)[:size] + whole[at + size :])
    assert refusal(path).startswith("FILE is damaged: ")


def test_a_damaged_schema(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[:100] + b"\x07" * 3996 + whole[4096:])
    assert refusal(path).startswith("FILE is damaged: ")


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_whatever_is_damaged_is_one_line_or_nothing(
    path: Path, small: bytes, changes: list[tuple[int, int, int]]
) -> None:
    broken = bytearray(small)
    for page, place, byte in changes:  # pages begin with what tells most
        broken[page * 4096 % len(small) + place] = byte
    path.write_bytes(broken)
    try:
        read_nsys(path)
    except ValueError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


def test_a_tree_that_bites_its_tail(path: Path, whole: bytes) -> None:
    with closing(sqlite3.connect(path)) as database:
        kernels = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        (root,) = database.execute(kernels).fetchone()
    header = (root - 1) * 4096  # of a page without cells, whose last child is the page itself
    path.write_bytes(
        whole[: header + 3] + b"\0\0" + whole[header + 5 : header + 8] + root.to_bytes(4) + whole[header + 12 :]
    )
    assert refusal(path) == "FILE is damaged: in table CUPTI_ACTIVITY_KIND_KERNEL, a table's tree has no end"


def test_a_file_is_left_as_it_is(path: Path, whole: bytes) -> None:
    before = path.stat().st_mtime_ns
    path.chmod(0o400)
    read_nsys(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (whole, before)
    assert list(path.parent.iterdir()) == [path]
