"""Draws stacks as a flame graph: one SVG file that any browser shows, and that zooms and searches where scripts run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from html import escape

from servebench.profile.flame_script import SCRIPT
from servebench.profile.flame_tree import WHO, Box, boxes_of, tree_of
from servebench.profile.modules import ModuleKind, kind_of
from servebench.profile.stacks import Stacks
from servebench.profile.symbols import short_name

LARGEST = 1_900_000  # bytes
MOST_BOXES = 10_000  # what fits into that, with names of ordinary length
ROW = 18  # px
TOP = 92  # px, of title and legend
SHADES = 3
READABLE = 0.012  # share of the width from which a name is drawn without a script's help
LONGEST_TITLE = 400  # characters: a C++ template may have thousands

# Three shades of a colour for each kind: in light, in dark.
_COLOURS: dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    ModuleKind.PYTHON.name: (("#8fbcf0", "#9fc7f4", "#82b1e8"), ("#2f5f9a", "#376aa8", "#29548a")),
    ModuleKind.MATH.name: (("#f7a072", "#f9b08a", "#f2935f"), ("#a04a1c", "#ae5522", "#8f4117")),
    ModuleKind.DEVICE.name: (("#8fd19e", "#a0dbad", "#7fc690"), ("#2b6e3d", "#337b46", "#246034")),
    ModuleKind.LIBRARY.name: (("#e9d27a", "#efdb90", "#e2c868"), ("#75621a", "#826d20", "#685615")),
    ModuleKind.KERNEL.name: (("#c9a6e4", "#d3b5ea", "#be98dc"), ("#623c85", "#6d4593", "#573476")),
    ModuleKind.UNKNOWN.name: (("#cfd3d8", "#d9dce0", "#c5cad0"), ("#4a5058", "#535a63", "#424850")),
    WHO: (("#dfe3e8", "#e6e9ed", "#d8dde3"), ("#343a42", "#3b424a", "#2e343b")),
}


def flame_svg(stacks: Stacks, title: str, subtitle: str = "") -> str:
    """Return the flame graph of `stacks` as the text of an SVG file below 2 MB; equal stacks give equal text.

    Callers are above what they call. Frames too small to matter are left out until it fits, and their share is stated.

    Args:
        stacks: with at least one sample.
        title: such as "decode".
        subtitle: more about it, on the line below.

    Raises:
        ValueError: there is no sample.
    """
    if not stacks.total:
        raise ValueError("no samples: there is nothing to draw")
    root = tree_of(stacks)
    smallest = 1
    while True:
        boxes, hidden = boxes_of(root, smallest)
        if len(boxes) > MOST_BOXES:
            smallest *= 2
            continue
        told = [subtitle, _left_out(smallest, hidden, root.samples)]
        svg = _document(boxes, stacks, title, " · ".join(filter(None, told)))
        if len(svg.encode()) <= LARGEST:
            return svg
        smallest *= 2


def _left_out(smallest: int, hidden: int, total: int) -> str:
    if not hidden:
        return ""
    share = 100 * hidden / total
    return f"frames below {100 * smallest / total:.2g} % are not drawn ({share:.1f} % of the samples end there)"


def _document(boxes: list[Box], stacks: Stacks, title: str, subtitle: str) -> str:
    height = TOP + (max(box.depth for box in boxes) + 1) * ROW + 12
    total = stacks.total
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" role="img"',
            f' aria-label="flame graph: {_quoted(title)}" id="flame" data-total="{total}">\n',
            f"<title>{_text(title)}</title>\n<style>{_style()}</style>\n",
            '<rect class="page" width="100%" height="100%"/>\n',
            f'<text class="h" x="1%" y="28">{_text(title)}</text>\n',
            f'<text class="s" x="1%" y="48">{_text(subtitle)}</text>\n',
            *_legend(stacks),
            '<text class="s" id="told" x="1%" y="84"/>\n',
            f'<svg id="frames" x="1%" y="{TOP}" width="98%" height="{height - TOP}">\n',
            *(_frame(box, total) for box in boxes),
            f"</svg>\n<script><![CDATA[{SCRIPT}]]></script>\n</svg>\n",
        ]
    )


def _frame(box: Box, total: int) -> str:
    node = box.node
    share = node.samples / total
    kind = WHO if node.module == WHO else kind_of(node.module).name
    shade = zlib.crc32(node.name.encode("utf-8", "replace")) % SHADES
    name = node.name if node.module == WHO else short_name(node.name)
    label = f'<text x="4" y="13">{_text(name)}</text>' if share >= READABLE else ""
    hint = f' data-name="{_quoted(name)}"' if not label and name != node.name else ""
    place = f'x="{100 * box.left / total:.4f}%" y="{box.depth * ROW}" width="{100 * share:.4f}%" height="{ROW - 1}"'
    return (
        f'<svg class="f"{hint} {place}>'
        f'<title>{_told(box, total)}</title><rect class="{kind} c{shade}" width="100%" height="100%"/>{label}</svg>\n'
    )


def _told(box: Box, total: int) -> str:
    """What is told of a box: name, module, share and own share."""
    node = box.node
    name = node.name if len(node.name) <= LONGEST_TITLE else f"{node.name[:LONGEST_TITLE]}…"
    place = "" if node.module in (WHO, "") else f" [{node.module}]"
    own = f", {100 * node.own / total:.1f} % itself" if node.own else ""
    return _text(f"{name}{place} — {100 * node.samples / total:.1f} % ({node.samples} samples{own})")


def _legend(stacks: Stacks) -> Iterator[str]:
    """A square for each kind with its share of the samples, by the innermost frame."""
    x = 0
    yield '<svg x="1%" width="98%" height="90">\n'
    for kind, share in kind_shares(stacks).items():
        words = f"{kind.value} {100 * share:.1f} %"
        yield f'<rect class="{kind.name} c0" x="{x}" y="57" width="11" height="11" rx="2"/>'
        yield f'<text class="s" x="{x + 16}" y="67">{_text(words)}</text>\n'
        x += 34 + round(6.7 * len(words))
    yield "</svg>\n"


def kind_shares(stacks: Stacks) -> dict[ModuleKind, float]:
    """Share of the samples by the kind of the innermost frame's module, the largest first; those of none left out."""
    counts = dict.fromkeys(ModuleKind, 0)
    for path, count in stacks.per_path().items():
        frames = stacks.paths[path]
        counts[kind_of(stacks.frames[frames[-1]].module) if frames else ModuleKind.UNKNOWN] += count
    shares = {kind: count / stacks.total for kind, count in counts.items() if count}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _style() -> str:
    light, dark = _rules(0), _rules(1)
    return (
        "svg{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:12px;"
        "--page:#fff;--ink:#1d2127;--soft:#5a626c;--mark:#e5006d}"
        f".page{{fill:var(--page)}}text{{fill:var(--ink)}}.h{{font-size:17px;font-weight:600}}.s{{fill:var(--soft);font-size:11px}}{light}"
        ".f{cursor:pointer}.f:hover rect{stroke:var(--ink);stroke-width:1.5}.outer{opacity:.55}"
        ".found rect{fill:var(--mark)!important}.found text{fill:#fff}"
        f"@media(prefers-color-scheme:dark){{svg{{--page:#15181c;--ink:#eceff3;--soft:#9aa4af;--mark:#d6307f}}{dark}}}"
    )


def _rules(theme: int) -> str:
    return "".join(
        f".{kind}.c{shade}{{fill:{colours[theme][shade]}}}"
        for kind, colours in _COLOURS.items()
        for shade in range(SHADES)
    )


def _text(text: str) -> str:
    """Text as XML holds it: markup escaped, characters that XML forbids replaced."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return escape(clean, quote=False)


def _quoted(text: str) -> str:
    return _text(text).replace('"', "&quot;")
