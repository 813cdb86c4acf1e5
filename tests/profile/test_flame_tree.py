"""The tree of a flame graph: widths, order, what is left out, and Python's interpreter in one piece."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perf_parts import stacks_of
from servebench.profile.flame_tree import Node, boxes_of, tree_of, without_towers
from servebench.profile.modules import PYTHON
from servebench.profile.stacks import Frame, StackGatherer, Thread

CPYTHON = "libpython3.11.so"


def walk(node: Node) -> list[Node]:
    return [node, *(each for child in node.children.values() for each in walk(child))]


def drawn(*frames: str) -> list[str]:
    """Names of what is drawn for `name[module]`s."""
    stacks = stacks_of(" ".join([*frames, "1"]))
    return [frame.name for frame in without_towers([stacks.frames[number] for number in stacks.paths[0]])]


def test_a_node_is_as_wide_as_its_samples() -> None:
    root = tree_of(stacks_of("main a 3", "main b 2", "main 1"))
    names = {node.name: (node.samples, node.own) for node in walk(root)}
    assert names == {
        "all": (6, 0),
        "serve · 7": (6, 0),
        "worker · thread 8": (6, 0),
        "main": (6, 1),
        "a": (3, 3),
        "b": (2, 2),
    }


@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=5), st.integers(1, 9)), min_size=1, max_size=20))
def test_no_sample_is_lost(rows: list[tuple[list[str], int]]) -> None:
    root = tree_of(stacks_of(*(" ".join([*names, str(count)]) for names, count in rows)))
    for node in walk(root):
        assert node.samples == node.own + sum(child.samples for child in node.children.values())
    assert root.samples == sum(count for _, count in rows)
    boxes, hidden = boxes_of(root, 1)
    assert hidden == 0
    assert len(boxes) == len(walk(root))


def test_boxes_lie_side_by_side_the_widest_first() -> None:
    boxes, _ = boxes_of(tree_of(stacks_of("m a 1", "m b 3", "m c 2")), 1)
    places = {box.node.name: (box.left, box.depth) for box in boxes}
    assert places["b"] == (0, 4)
    assert places["c"] == (3, 4)
    assert places["a"] == (5, 4)


def test_what_is_too_small_is_left_out_and_counted() -> None:
    boxes, hidden = boxes_of(tree_of(stacks_of("m a x 1", "m b 30")), 2)
    assert {"a", "x"}.isdisjoint(box.node.name for box in boxes)
    assert hidden == 1


def test_threads_of_a_file_that_knows_no_processes_are_one_row() -> None:
    gathered = StackGatherer()
    gathered.add(Thread(0, "java", 0, "java"), [gathered.frame(Frame("main", ""))])
    assert [node.name for node in walk(tree_of(gathered.stacks()))] == ["all", "java", "main"]


def test_the_interpreter_is_drawn_once_where_it_names_nothing() -> None:
    call = [f"_PyEval_Vector[{CPYTHON}]", f"_PyObject_Call[{CPYTHON}]"]
    assert drawn(*call, *call, "torch_add[libtorch.so]") == ["Python 3.11 interpreter", "torch_add"]
    assert drawn("start[libc.so]", *call, "torch_add[t.so]", *call) == [
        "start",
        "Python 3.11 interpreter",
        "torch_add",
        "Python 3.11 interpreter",
        "_PyObject_Call",
    ]


def test_named_python_functions_follow_one_another() -> None:
    inner = f"_PyEval_Vector[{CPYTHON}]"
    assert drawn(inner, f"outer[{PYTHON}]", inner, inner, f"inner[{PYTHON}]", inner, "add[t.so]") == [
        "Python 3.11 interpreter",
        "outer",
        "inner",
        "Python 3.11 interpreter",
        "add",
    ]
