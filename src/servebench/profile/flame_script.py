"""What a flame graph can do where scripts run: zoom by a click, tell what the pointer is on, search."""

from __future__ import annotations

SCRIPT = """
(function () {
  "use strict";
  var SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml";
  var root = document.getElementById("flame"), area = document.getElementById("frames");
  var told = document.getElementById("told"), total = +root.dataset.total, ROW = 18, zoomed = null;
  var frames = Array.prototype.map.call(area.querySelectorAll(".f"), function (node) {
    var left = parseFloat(node.getAttribute("x")), width = parseFloat(node.getAttribute("width"));
    var text = node.querySelector("title").textContent;
    node.querySelector("title").remove();
    return { node: node, left: left, right: left + width, depth: +node.getAttribute("y") / ROW, text: text,
             name: label(text, node), shown: width };
  });
  function label(text, node) {
    var drawn = node.querySelector("text");
    if (node.dataset.name) return node.dataset.name;
    return drawn ? drawn.textContent : text.replace(/ — [^—]*$/, "").replace(/ \\[[^\\[]*\\]$/, "");
  }
  function write(frame) {
    var text = frame.node.querySelector("text"), room = frame.shown / 100 * area.getBoundingClientRect().width;
    if (room < 24) { if (text) text.remove(); return; }
    if (!text) {
      text = document.createElementNS(SVG, "text");
      text.setAttribute("x", 4); text.setAttribute("y", 13);
      frame.node.appendChild(text);
    }
    text.textContent = frame.name;
  }
  function zoom(target) {
    var tiny = 1e-3, width = target.right - target.left;
    zoomed = target;
    frames.forEach(function (frame) {
      var outer = frame.depth < target.depth && frame.left <= target.left + tiny && frame.right >= target.right - tiny;
      var inner = frame.depth >= target.depth && frame.left >= target.left - tiny && frame.right <= target.right + tiny;
      frame.node.style.display = outer || inner ? "" : "none";
      frame.node.classList.toggle("outer", outer);
      if (!outer && !inner) return;
      frame.shown = outer ? 100 : (frame.right - frame.left) / width * 100;
      frame.node.setAttribute("x", (outer ? 0 : (frame.left - target.left) / width * 100) + "%");
      frame.node.setAttribute("width", frame.shown + "%");
      write(frame);
    });
  }
  function search(term) {
    var found = 0, reached = -1, pattern = null;
    try { pattern = term ? new RegExp(term, "i") : null; } catch (error) { pattern = null; }
    frames.forEach(function (frame) {
      var hit = !!pattern && pattern.test(frame.text.replace(/ — [^—]*$/, ""));
      frame.node.classList.toggle("found", hit);
      if (hit && frame.left >= reached - 1e-3) { found += frame.right - frame.left; reached = frame.right; }
    });
    told.textContent = pattern ? "found in " + found.toFixed(1) + " % of the samples" : "";
  }
  function box() {
    var holder = document.createElementNS(SVG, "foreignObject"), input = document.createElementNS(XHTML, "input");
    holder.setAttribute("x", "100%"); holder.setAttribute("y", 12);
    holder.setAttribute("width", 230); holder.setAttribute("height", 30);
    holder.setAttribute("transform", "translate(-242 0)");
    input.setAttribute("placeholder", "search (regular expression)");
    input.setAttribute("aria-label", "search");
    input.setAttribute("style", "width:214px;font:12px ui-monospace,monospace;padding:4px 7px;border-radius:6px;" +
      "border:1px solid var(--soft);background:var(--page);color:var(--ink)");
    input.addEventListener("input", function () { search(input.value); });
    holder.appendChild(input); root.appendChild(holder);
    return input;
  }
  var input = box(), first = frames[0];
  frames.forEach(function (frame) {
    frame.node.addEventListener("click", function () { zoom(frame === zoomed ? first : frame); });
    frame.node.addEventListener("mouseenter", function () { told.textContent = frame.text; });
  });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { input.value = ""; search(""); zoom(first); }
  });
  window.addEventListener("resize", function () { frames.forEach(write); });
  zoom(first);
  told.textContent = "click to zoom, Escape to go back";
}());
"""
