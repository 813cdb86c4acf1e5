"""Names of functions: what a linker, a compiler or an interpreter calls them, made readable."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache

MANGLED = ("_Z", "__Z", "_R")
SECONDS = 30.0

_PYTHON = re.compile(r"^py::(.*?):(.*)$")
_KEPT = re.compile(r"\(anonymous namespace\)::|\{lambda\([^{}]*\)#\d+\}|operator(\(\)|<=>|<<=?|>>=?|->\*?|<=?|>=?)")
_SHORT = {"{l": "{lambda}", "(a": ""}  # a namespace of no name has nothing to tell
_CPP = re.compile(r"::|\w<")
_OPERATOR = re.compile(r"[\w:~{}]*\boperator\b.*$")
_VERSION = re.compile(r"@+[A-Z][\w.]*$")  # of a symbol: exp@GLIBC_2.2.5
_QUALIFIERS = re.compile(r"( const| volatile| noexcept|&{1,2}| \[clone [^\]]*\]|@plt)+$")


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of those `names` that are still mangled; nothing where `c++filt` is not installed.

    perf demangles C++ itself where it was built with a demangler; this is for where it was not.
    """
    mangled = sorted({name for name in names if name.startswith(MANGLED) and "\n" not in name})
    program = shutil.which("c++filt")
    if not mangled or program is None:
        return {}
    try:
        done = subprocess.run([program], input="\n".join(mangled), capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    plain = done.stdout.splitlines()
    return dict(zip(mangled, plain, strict=True)) if len(plain) == len(mangled) else {}


def python_name(symbol: str) -> str | None:
    """Return `function (folder/file.py)` for a symbol that CPython wrote for perf (`py::function:/path/file.py`)."""
    match = _PYTHON.match(symbol)
    if match is None:
        return None
    place = "/".join(match[2].split("/")[-2:])
    return f"{match[1]} ({place})" if place else match[1]


@lru_cache(maxsize=1 << 16)
def short_name(name: str, longest: int = 120) -> str:
    """Return a C++ name without its template arguments, parameters and return type; other names as they are.

    `void at::native::sum<float>(at::Tensor const&)` becomes `at::native::sum`.
    """
    name = _VERSION.sub("", name) or name
    if _CPP.search(name) and not name.startswith("<"):  # as Rust's may
        bare = _QUALIFIERS.sub("", _outside_brackets(name)).replace(" const::", "::").strip()
        operator = _OPERATOR.search(bare)
        name = (operator[0] if operator else bare.rpartition(" ")[2]) or name
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _outside_brackets(name: str) -> str:
    """Leave out what stands in <> and (), but for what is part of a name, such as `operator()`."""
    kept: list[str] = []
    depth = position = 0
    while position < len(name):
        whole = _KEPT.match(name, position)
        if whole is not None:
            text = _SHORT.get(whole[0][:2], whole[0])
            position = whole.end()
        else:
            text = name[position]
            position += 1
            if text in "<(":
                depth += 1
                continue
            if text in ">)" and depth:
                depth -= 1
                continue
        if not depth:
            kept.append(text)
    return "".join(kept)
