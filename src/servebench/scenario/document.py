"""A YAML file as plain data that remembers where each value was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from servebench.errors import UsageError
from servebench.units import describe

Step = str | int
Steps = tuple[Step, ...]

# Aliases can make a small file expand without end; no honest scenario comes near these.
MAX_VALUES = 20_000
MAX_DEPTH = 40


class _Loader(yaml.SafeLoader):
    """Safe loading by YAML 1.2's core schema: no sexagesimals, no dates, and ``no`` and ``off`` are words."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own attribute)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+", [*"-+0123456789"]),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


@dataclass(slots=True)
class Document:
    """Plain data and the origin of its parts.

    Attributes:
        source: what errors call the file.
        data: dicts, lists and scalars.
        origins: where each path was written: ``file:line`` or the override that set it.
    """

    source: str
    data: dict[str, Any]
    origins: dict[Steps, str] = field(default_factory=dict)

    def locate(self, steps: Sequence[Step]) -> tuple[str, Steps]:
        """Return the origin of the deepest part of `steps` that was written, and its path as written.

        Steps that the file does not have are skipped: the schema knows ``classes, 0, input_tokens`` where a flat
        workload says just ``input_tokens``.
        """
        node: Any = self.data
        path: Steps = ()
        for step in steps:
            if _has(node, step):
                node = node[step]
                path = (*path, step)
        known = path
        while known not in self.origins and known:
            known = known[:-1]
        return self.origins.get(known, self.source), path


def _has(node: Any, step: Step) -> bool:
    if isinstance(node, dict):
        return step in node
    return isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node)


def read_document(path: Path) -> Document:
    """Read one YAML mapping.

    Raises:
        UsageError: unreadable, not YAML, a duplicate key, a tag that is not plain data, or no mapping at the top.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Document:
    """Parse the text of one YAML mapping; `source` is what errors call it. Raises UsageError like `read_document`."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise UsageError(f"{source}: expected a mapping of keys, such as `name: chat`")
        document = Document(source, {})
        document.data = _Builder(loader, document).build(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise UsageError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    return document


def parse_value(text: str) -> Any:
    """Parse the right-hand side of an override, which is YAML too. Raises UsageError."""
    return parse_document(f"value: {text}", "value").data["value"]


class _Builder:
    """Turns YAML nodes into plain data, filling in a document's origins."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self.loader = loader
        self.document = document
        self.values = 0

    def build(self, node: yaml.Node, path: Steps) -> Any:
        where = f"{self.document.source}:{node.start_mark.line + 1}"
        self.document.origins.setdefault(path, where)
        self.values += 1
        if self.values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise UsageError(f"{where}: too many or too deeply nested values (aliases that expand without end?)")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, where)

    def mapping(self, node: yaml.MappingNode, path: Steps) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.document.source}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError(f"{where}: a key must be a word")
            key = str(key_node.value)
            if key in result:
                raise UsageError(f"{where}: key {describe(key)} is given twice")
            self.document.origins[(*path, key)] = where
            result[key] = self.build(value_node, (*path, key))
        return result

    def scalar(self, node: yaml.Node, where: str) -> Any:
        core = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str")}
        if node.tag not in core:
            raise UsageError(f'{where}: the tag "{node.tag}" is not allowed; only plain values are')
        if node.tag == "tag:yaml.org,2002:int":
            return int(node.value)  # decimal, where YAML 1.1 would read 010 as eight
        return self.loader.construct_object(node)
