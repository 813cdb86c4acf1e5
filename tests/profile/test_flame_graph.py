"""The flame graph as a file: well-formed, escaped, below its size, the same each time."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_parts import stacks_of
from servebench.profile.flame_graph import LARGEST, flame_svg, kind_shares
from servebench.profile.modules import ModuleKind
from servebench.profile.stacks import Frame, StackGatherer, Stacks, Thread

SVG = "{http://www.w3.org/2000/svg}"


def frames(svg: str) -> dict[str, ET.Element]:
    """Boxes by the name that their title begins with."""
    found = ET.fromstring(svg).iter(f"{SVG}svg")
    boxes = [box for box in found if box.get("class") == "f"]
    return {(box.findtext(f"{SVG}title") or "").partition(" — ")[0]: box for box in boxes}


def of_names(*names: str) -> Stacks:
    gathered = StackGatherer()
    gathered.add(Thread(1, "p", 1, "p"), [gathered.frame(Frame(name, "")) for name in names])
    return gathered.stacks()


def test_boxes_tell_name_module_and_shares() -> None:
    boxes = frames(flame_svg(stacks_of("main[app] a[libtorch.so] 3", "main[app] 1"), "decode"))
    box = boxes["a [libtorch.so]"]
    assert box.findtext(f"{SVG}title") == "a [libtorch.so] — 75.0 % (3 samples, 75.0 % itself)"
    assert (box.get("x"), box.get("width")) == ("0.0000%", "75.0000%")
    assert box.findtext(f"{SVG}text") == "a"
    assert (box.find(f"{SVG}rect")).get("class", "").startswith("MATH ")  # type: ignore[union-attr]


def test_it_is_self_contained() -> None:
    svg = flame_svg(stacks_of("main 1"), "decode", "one sample")
    links = set(re.findall(r"https?://[^\"'\s]+", svg))
    assert links == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert not re.search(r"\b(href|src|url\(|@import)", svg)


@pytest.mark.parametrize("name", ["a<b>&\"c'", "]]>", "</script>", "x\x00\x1b[31m", "\ud800", "日本", "--><!--"])
def test_names_are_text_whatever_they_are(name: str) -> None:
    svg = flame_svg(of_names(name), name, name)
    assert len(frames(svg)) == 4
    ET.fromstring(svg.encode("utf-8"))


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_names_make_a_well_formed_file(names: list[str]) -> None:
    ET.fromstring(flame_svg(of_names(*names), names[0], names[-1]).encode("utf-8"))


def test_equal_stacks_give_equal_files() -> None:
    lines = [f"main f{number % 7} g{number % 3}[lib.so] {number + 1}" for number in range(50)]
    shuffled = random.Random(3).sample(lines, len(lines))
    assert flame_svg(stacks_of(*lines), "t") == flame_svg(stacks_of(*shuffled), "t")


def test_a_huge_capture_is_pruned_below_two_megabytes_and_says_so() -> None:
    rng = random.Random(7)
    gathered = StackGatherer()
    for _ in range(40_000):
        path = [gathered.frame(Frame(f"ns::function_{rng.randrange(30)}_{'x' * 60}", "lib.so")) for _ in range(8)]
        gathered.add(Thread(1, "p", 1, "p"), path)
    svg = flame_svg(gathered.stacks(), "mixed")
    assert len(svg.encode()) <= LARGEST
    assert re.search(r"frames below [\d.]+ % are not drawn \([\d.]+ % of the samples end there\)", svg)
    assert len(frames(svg)) > 1


def test_nothing_is_said_to_be_left_out_when_nothing_is() -> None:
    assert "not drawn" not in flame_svg(stacks_of("main 1"), "t")


def test_the_kinds_of_modules_are_told_by_the_innermost_frame() -> None:
    stacks = stacks_of("main[python3.11] f[libtorch.so] 6", "main[python3.11] 3", "f[kernel] 1")
    assert kind_shares(stacks) == {ModuleKind.MATH: 0.6, ModuleKind.PYTHON: 0.3, ModuleKind.KERNEL: 0.1}
    assert "native maths 60.0 %" in flame_svg(stacks, "t")


def test_without_samples_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no samples"):
        flame_svg(stacks_of("f 0"), "t")
