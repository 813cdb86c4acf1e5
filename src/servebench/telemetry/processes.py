"""The processes of this machine, by parent."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def process_tree(root: int, proc: Path = Path("/proc")) -> list[int]:
    """`root` and all its living descendants; `root` alone where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree
