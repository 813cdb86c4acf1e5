"""``--set a.b.c=value``: changes to a scenario's data before it is validated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from servebench.errors import UsageError
from servebench.scenario.document import Document, Step, Steps, parse_value
from servebench.scenario.engine import flag_name
from servebench.scenario.lengths import LAWS
from servebench.scenario.load import LOAD_LAWS, STAGE_LAWS

# Shorthands that stand for a mapping: what they become when an override reaches into them.
EXPAND: dict[Steps, tuple[str, ...]] = {
    ("seed",): ("arrivals", "lengths", "content"),
    ("load", "max_in_flight"): ("limit",),
}
# Where the keys are vLLM's, which people write with dashes and with underscores.
DASHED: tuple[Steps, ...] = (("engine", "vllm", "flags"), ("engine", "sim"))


def one_of(path: Steps) -> tuple[tuple[str, ...], ...]:
    """Groups of keys of which the mapping at `path` holds at most one: setting one takes the others away."""
    if path == ("load",):
        return (LOAD_LAWS, ("duration", "requests"))
    if path[:2] == ("load", "stages") and len(path) == 3:
        return (STAGE_LAWS,)
    is_law = path[:1] == ("workload",) and path[-1] in ("input_tokens", "output_tokens")
    return (tuple(LAWS),) if is_law else ()


def apply_override(document: Document, text: str) -> None:
    """Apply ``a.b.c=value`` to `document`; the value is YAML.

    ``load.rate`` means the rate of whichever open law the scenario has.

    Raises:
        UsageError: not of that form, or a path that leads into something that has no parts.
    """
    path, equals, value = text.partition("=")
    steps: Steps = tuple(path.strip().split("."))
    origin = f"--set {text}"
    if not equals or not all(steps):
        raise UsageError(f"{origin}: expected a dotted path and a value, such as load.poisson=8/s")
    if steps == ("load", "rate"):
        steps = _rate_path(document.data.get("load"), origin)
    try:
        parsed = parse_value(value)
    except UsageError as error:
        reason = str(error).partition("YAML: ")[2] or error
        raise UsageError(f"{origin}: the value is not valid YAML (quote it if it is text): {reason}") from None
    _Setter(document, origin).set(steps, parsed)


def _rate_path(load: Any, origin: str) -> Steps:
    laws = [law for law in LOAD_LAWS if isinstance(load, dict) and load.get(law) is not None]
    if laws in (["poisson"], ["constant"]):
        return ("load", laws[0])
    if laws == ["gamma"]:
        return ("load", "gamma", "rate")
    has = laws[0] if laws else "no law"
    raise UsageError(
        f"{origin}: the load has {has}, which has no single rate; set load.poisson to switch to one that has"
    )


class _Setter:
    """Sets one path of a document, keeping its origins true."""

    def __init__(self, document: Document, origin: str) -> None:
        self.document = document
        self.origin = origin

    def set(self, steps: Steps, value: Any) -> None:
        node: Any = self.document.data
        path: Steps = ()
        for step in steps[:-1]:
            key = self.key(node, step, path)
            if isinstance(node, dict):
                self.clear_rivals(node, path, str(key))
                self.open(node, key, path)
            node = node[key]
            path = (*path, key)
        key = self.key(node, steps[-1], path)
        if isinstance(node, dict):
            self.clear_rivals(node, path, str(key))
        self.forget((*path, key))
        node[key] = value
        self.document.origins[(*path, key)] = self.origin

    def key(self, node: Any, step: Step, path: Steps) -> Step:
        """The key of `node` that `step` means: an index or a class name in a list, either spelling of a flag."""
        if isinstance(node, list):
            return self.index(node, str(step), path)
        if not isinstance(node, dict):
            raise UsageError(f'{self.origin}: "{dotted(path)}" is a single value and has no "{step}"')
        if path not in DASHED:
            return step
        spellings = [key for key in node if flag_name(key) == flag_name(str(step))]
        return spellings[0] if spellings else step

    def index(self, node: list[Any], step: str, path: Steps) -> int:
        names = [item.get("name") if isinstance(item, dict) else None for item in node]
        if step in names:
            return names.index(step)
        if step.isdecimal() and int(step) < len(node):
            return int(step)
        known = ", ".join(str(name) for name in names if name) or f"0 to {len(node) - 1}"
        raise UsageError(f'{self.origin}: "{dotted(path)}" has no item "{step}" (known: {known})')

    def open(self, node: dict[str, Any], key: Step, path: Steps) -> None:
        """Make sure that ``node[key]`` has parts, writing a shorthand out."""
        value = node.get(str(key))
        if isinstance(value, (dict, list)):
            return
        here = (*path, key)
        if here in EXPAND and value is not None:
            node[str(key)] = dict.fromkeys(EXPAND[here], value)
        elif value is None or one_of(here):
            node[str(key)] = {}
            self.document.origins[here] = self.origin

    def clear_rivals(self, node: dict[str, Any], path: Steps, key: str) -> None:
        for group in one_of(path):
            for rival in group if key in group else ():
                if rival != key and rival in node:
                    del node[rival]
                    self.forget((*path, rival))

    def forget(self, path: Steps) -> None:
        for known in [p for p in self.document.origins if p[: len(path)] == path]:
            del self.document.origins[known]


def dotted(steps: Iterable[Step]) -> str:
    """A path as people write it."""
    return ".".join(str(step) for step in steps)
