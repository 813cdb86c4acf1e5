"""The flame graph in a real browser: it is drawn, zooms and searches, and its console stays silent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from perf_parts import stacks_of
from servebench.profile.flame_graph import flame_svg

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",  # where the console's messages go
    "--window-size=1200,800",
    "--virtual-time-budget=3000",
    "--dump-dom",
)
STACKS = ("main[app] left[libtorch.so] deep[libc.so] 30", "main[app] right[python3.11] 10", "main[app] tiny[app] 1")
REPORT = """<script><![CDATA[
(function () {
  var seen = {};
  function look(key) {
    var shown = {};
    document.querySelectorAll(".f").forEach(function (box) {
      if (box.style.display !== "none") {
        var text = box.querySelector("text"), rect = box.querySelector("rect").getBoundingClientRect();
        shown[text ? text.textContent : "(" + Object.keys(shown).length + ")"] =
          [Math.round(rect.width), box.classList.contains("found"), box.classList.contains("outer"),
           getComputedStyle(box.querySelector("rect")).fill];
      }
    });
    seen[key] = { shown: shown, told: document.getElementById("told").textContent };
  }
  function click(name) {
    document.querySelectorAll(".f").forEach(function (box) {
      var text = box.querySelector("text");
      if (text && text.textContent === name) box.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    });
  }
  look("first");
  click("right"); look("zoomed");
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" })); look("back");
  var input = document.querySelector("input");
  input.value = "^(left|deep)"; input.dispatchEvent(new Event("input")); look("searched");
  input.value = "(["; input.dispatchEvent(new Event("input")); look("nonsense");
  document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
}());
]]></script>"""


def browse(svg: str, folder: Path) -> tuple[str, str]:
    """The document as the browser has it after its scripts, and what the browser logged."""
    path = folder / "flame.svg"
    path.write_text(svg, "utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'browser'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was shown, step by step: the width in pixels, found, outer and colour of each box by its name."""
    svg = flame_svg(stacks_of(*STACKS), "decode <1>", "a & b")
    with_report = f"{svg[: svg.rindex('</svg>')]}{REPORT}</svg>"
    document, log = browse(with_report, tmp_path_factory.mktemp("page"))
    assert "CONSOLE" not in log, log
    match = re.search(r'data-seen="([^"]*)"', document)
    assert match is not None, document[:2000]
    result: dict[str, Any] = json.loads(unescape(match[1]))
    return result


def test_all_frames_are_there_as_wide_as_their_samples(seen: dict[str, Any]) -> None:
    shown = seen["first"]["shown"]
    assert {"all", "serve · 7", "worker · thread 8", "main", "left", "deep", "tiny"} <= shown.keys()
    assert shown["left"][0] == pytest.approx(shown["main"][0] * 30 / 41, abs=1)
    assert shown["main"][0] == pytest.approx(1200 * 0.98, abs=20)


def test_kinds_have_colours_of_their_own(seen: dict[str, Any]) -> None:
    shown = seen["first"]["shown"]
    assert len({shown[name][3] for name in ("all", "main", "left", "Python 3.11 interpreter")}) == 4


def test_a_click_zooms_and_escape_goes_back(seen: dict[str, Any]) -> None:
    zoomed = seen["zoomed"]["shown"]
    assert "left" not in zoomed
    assert zoomed["right"][0] == zoomed["main"][0] == seen["first"]["shown"]["main"][0]
    assert zoomed["main"][2]
    assert not zoomed["right"][2]
    assert seen["back"]["shown"] == seen["first"]["shown"]


def test_a_search_marks_what_it_finds_and_tells_its_share_once(seen: dict[str, Any]) -> None:
    shown = seen["searched"]["shown"]
    assert shown["left"][1]
    assert shown["deep"][1]
    assert not shown["main"][1]
    assert shown["left"][3] != seen["first"]["shown"]["left"][3]
    assert seen["searched"]["told"] == "found in 73.2 % of the samples"  # 30 of 41, not 60
    assert seen["nonsense"]["told"] == ""


def test_names_with_markup_open_as_well(tmp_path: Path) -> None:
    document, log = browse(flame_svg(stacks_of("a<b>&'\"</script>]]>;x 1"), "t"), tmp_path)
    assert "CONSOLE" not in log
    assert document.count('class="f"') == 4
    assert "parsererror" not in document
