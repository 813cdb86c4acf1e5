"""The tree of a flame graph: stacks merged from their outer ends, each node as wide as its samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from servebench.profile.modules import PYTHON, UNKNOWN, interpreter_of
from servebench.profile.stacks import Frame, Stacks

WHO = "who"  # in place of a module: the node is a process, a thread, or all of them


@dataclass(slots=True)
class Node:
    """A function as it was called by its parent; or a process or a thread.

    Attributes:
        name, module: of the function; `WHO` for what is none.
        samples: in it and in what it calls.
        own: in itself.
        children: by (name, module).
    """

    name: str
    module: str = UNKNOWN
    samples: int = 0
    own: int = 0
    children: dict[tuple[str, str], Node] = field(default_factory=dict)

    def child(self, name: str, module: str) -> Node:
        node = self.children.get((name, module))
        if node is None:
            node = self.children[name, module] = Node(name, module)
        return node


@dataclass(frozen=True, slots=True)
class Box:
    """A node's place: from `left` samples of `total`, `node.samples` wide, in the row `depth`."""

    node: Node
    left: int
    depth: int


def tree_of(stacks: Stacks) -> Node:
    """Merge stacks into one tree: all, then processes, their threads, and the frames of each from the outermost on.

    A run of the Python interpreter's own frames is one node: a dozen for each call say only that Python runs.
    """
    root = Node("all", WHO)
    drawn = [without_towers([stacks.frames[frame] for frame in path]) for path in stacks.paths]
    for (thread, path), count in stacks.counts().items():
        who = stacks.threads[thread]
        node = root
        steps = [(name, WHO) for name in _who(who.process_name, who.process, who.name, who.thread)]
        steps += drawn[path]
        node.samples += count
        for name, module in steps:
            node = node.child(name, module)
            node.samples += count
        node.own += count
    return root


def without_towers(frames: list[Frame]) -> list[Frame]:
    """Draw each run of an interpreter's frames together, and not at all between Python functions that have names.

    An innermost run keeps its innermost frame: that is where the time went.
    """
    kept: list[Frame] = []
    for position, frame in enumerate(frames):
        version = interpreter_of(frame.module)
        if version is None:
            if frame.module == PYTHON and len(kept) > 1 and _is_tower(kept[-1]) and kept[-2].module == PYTHON:
                kept.pop()
            kept.append(frame)
            continue
        tower = Frame(f"Python {version[0]}.{version[1]} interpreter", frame.module)
        if not kept or kept[-1] != tower:
            kept.append(tower)
        if position == len(frames) - 1:
            kept.append(frame)
    return kept


def _is_tower(frame: Frame) -> bool:
    return interpreter_of(frame.module) is not None


def _who(process_name: str, process: int, thread_name: str, thread: int) -> list[str]:
    """A process and its thread; one name where a file does not tell them apart."""
    return [f"{process_name} · {process}", f"{thread_name} · thread {thread}"] if process else [thread_name]


def boxes_of(root: Node, smallest: int) -> tuple[list[Box], int]:
    """Place the nodes of at least `smallest` samples, the widest first among brothers.

    Returns:
        the boxes, callers before those that they call, and the samples that end in nodes too small to be placed.
    """
    boxes: list[Box] = []
    hidden = 0
    waiting = [Box(root, 0, 0)]
    while waiting:
        box = waiting.pop()
        boxes.append(box)
        left = box.left
        shown = []
        for node in sorted(box.node.children.values(), key=lambda each: (-each.samples, each.name, each.module)):
            if node.samples >= smallest:
                shown.append(Box(node, left, box.depth + 1))
            else:
                hidden += node.samples
            left += node.samples
        waiting += reversed(shown)
    return boxes, hidden
