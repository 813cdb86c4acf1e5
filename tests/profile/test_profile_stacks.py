"""Stacks: counting, cutting by time, and the folded file that they become and come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_parts import stacks_of
from servebench.profile.stacks import Frame, StackGatherer, Stacks, Thread

ONE = Thread(10, "python3", 10, "python3")
TWO = Thread(10, "python3", 11, "io thread 2")


def timed(*rows: tuple[Thread, str, int]) -> Stacks:
    gathered = StackGatherer()
    for thread, name, instant in rows:
        gathered.add(thread, [gathered.frame(Frame("main", "app")), gathered.frame(Frame(name, "lib.so"))], 1, instant)
    return gathered.stacks()


def written(stacks: Stacks, folder: Path) -> Stacks:
    stacks.write(folder / "stacks.folded")
    return Stacks.read(folder / "stacks.folded")


def test_the_folded_form_is_as_documented(tmp_path: Path) -> None:
    stacks = timed((ONE, "f", 1), (TWO, "g", 2), (ONE, "f", 3))
    stacks.write(tmp_path / "stacks.folded")
    assert (tmp_path / "stacks.folded").read_text() == (
        "python3 10;io thread 2 11;main [app];g [lib.so] 1\npython3 10;python3 10;main [app];f [lib.so] 2\n"
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    stacks = timed((ONE, "f", 1), (TWO, "g", 2), (ONE, "f", 3))
    back = written(stacks, tmp_path)
    assert back.per_thread() == stacks.per_thread() == {ONE: 2, TWO: 1}
    assert list(back.folded()) == list(stacks.folded())
    assert back.time is None
    with pytest.raises(ValueError, match="not known"):
        back.between(0, 9)


@pytest.mark.parametrize(
    "frame",
    [
        Frame("operator new[](unsigned long)", "libstdc++.so"),
        Frame("foo(int) [clone .isra.0]", ""),
        Frame("a;b", ""),
        Frame("x [y]", "m"),
        Frame("[unknown]", ""),
        Frame("日本", "ü.so"),
        Frame("", "m"),
    ],
)
def test_odd_names_survive(frame: Frame, tmp_path: Path) -> None:
    gathered = StackGatherer()
    gathered.add(ONE, [gathered.frame(frame)])
    assert written(gathered.stacks(), tmp_path).frames == (frame._replace(name=frame.name.replace(";", ":")),)


names = st.text(st.characters(exclude_characters=";\r\n[]", exclude_categories=["Cs", "Zl", "Zp", "Cc"]), min_size=1)


@given(st.lists(st.tuples(names, st.lists(names, max_size=4), st.integers(1, 1000)), min_size=1, max_size=8))
def test_any_stacks_keep_their_counts(rows: list[tuple[str, list[str], int]]) -> None:
    gathered = StackGatherer()
    for name, frames, count in rows:
        gathered.add(Thread(3, "p", 4, name), [gathered.frame(Frame(each, "so")) for each in frames], count)
    stacks = gathered.stacks(timed=False)
    assert sum(int(line.rpartition(" ")[2]) for line in stacks.folded()) == stacks.total
    assert stacks.total == sum(count for *_, count in rows) == sum(stacks.per_path().values())


def test_a_window_is_cut_by_the_samples_own_instants() -> None:
    stacks = timed((ONE, "f", 10), (ONE, "g", 20), (TWO, "g", 29), (ONE, "f", 30))
    inside = stacks.between(20, 30)
    assert inside.total == 2
    assert inside.per_thread() == {ONE: 1, TWO: 1}
    assert inside.time is not None
    assert inside.time.tolist() == [20, 29]
    assert inside.between(50, 60).total == 0


def test_another_tools_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    path.write_text("java;main;run 30\njava;main 2\n\n")
    stacks = Stacks.read(path)
    assert stacks.total == 32
    assert stacks.threads == (Thread(0, "java", 0, "java"),)
    assert [frame.name for frame in stacks.frames] == ["main", "run"]


@pytest.mark.parametrize("text", ["", "\n", "main;foo\n", "main;foo 1.5\n", "{}", "main -3\n"])
def test_what_is_no_folded_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.folded"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.folded"):
        Stacks.read(path)


def test_paths_are_kept_once() -> None:
    stacks = stacks_of("a b 2", "a b 3", "a 1")
    assert len(stacks.paths) == 2
    assert len(stacks.frames) == 2
    assert stacks.count.dtype == np.int64
    assert stacks.total == 6
