"""Which processes serve at a port of this machine and use a GPU: the server under test, where it is not our child."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

LISTENING = "0A"
DEVICE = re.compile(r"^/dev/(nvidia\d+|dxg)$")  # the second is WSL's

_SOCKET = re.compile(r"^socket:\[(\d+)\]$")


def gpu_server_pids(port: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes that listen at `port`, with their descendants, if one of these has an NVIDIA device open.

    A proxy or a tunnel at the port uses no GPU, and the server behind it is not its child: such listeners are left out,
    since everything on the GPUs would then look foreign. Empty where nothing is found, or this user may not look.
    """
    inodes = set(_listening(port, proc))
    if not inodes:
        return []
    open_files = {int(folder.name): _links(folder / "fd") for folder in proc.glob("[0-9]*")}
    listeners = [pid for pid, links in open_files.items() if inodes & {_inode(link) for link in links}]
    return sorted({pid for root in listeners for pid in _gpu_tree(root, open_files, proc)})


def listening_pids(port: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes of this machine that listen at `port`, in ascending order; empty where this user may not look."""
    inodes = set(_listening(port, proc))
    if not inodes:
        return []
    open_files = {int(folder.name): _links(folder / "fd") for folder in proc.glob("[0-9]*")}
    return sorted(pid for pid, links in open_files.items() if inodes & {_inode(link) for link in links})


def _listening(port: int, proc: Path) -> Iterator[str]:
    """Inodes of the sockets that listen at `port`."""
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _links(folder: Path) -> list[str]:
    try:
        return [link for path in folder.iterdir() if (link := _link(path))]
    except OSError:
        return []  # somebody else's process, or one that has ended


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""  # closed meanwhile


def _inode(link: str) -> str | None:
    found = _SOCKET.match(link)
    return found[1] if found else None


def _gpu_tree(root: int, open_files: dict[int, list[str]], proc: Path) -> list[int]:
    tree = _tree(root, list(open_files), proc)
    uses = any(DEVICE.match(link) for pid in tree for link in open_files.get(pid, ()))
    return tree if uses else []


def _tree(root: int, pids: list[int], proc: Path) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in pids:
        if (parent := _parent(pid, proc)) is not None:
            children.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, ())
    return tree


def _parent(pid: int, proc: Path) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None
