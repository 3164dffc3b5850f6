"""Pages as a browser lays them out: Chromium without a window, in a profile of its own, without network."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=8000"
).split()

# Runs inside the page, everything unfolded: what is wider than the page, and what a reader sees of each figure.
_MEASURE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const box = e => e.getBoundingClientRect(), width = document.documentElement.clientWidth;
  const inside = e => e.closest(".scroll, pre, svg");
  const wide = [...document.body.querySelectorAll("*")]
    .filter(e => !inside(e.parentElement) && box(e).right > width + 0.5);
  const figures = [...document.querySelectorAll("figure")].map(f => ({
    title: f.querySelector("h3").innerText,
    legend: [...f.querySelectorAll(".legend li")].map(l => l.innerText),
    legend_fits: [...f.querySelectorAll(".legend li")]
      .every(l => box(l).right <= box(f).right + 0.5 && box(l).height > 0),
    panels: [...f.querySelectorAll(".panels > svg")].map(s => {
      const texts = [...s.querySelectorAll("text")], scale = box(s).width / s.viewBox.baseVal.width;
      return {
        texts: texts.map(t => t.textContent),
        smallest: Math.min(...texts.map(t => parseFloat(getComputedStyle(t).fontSize) * scale)),
        width: box(s).width,
        cut: texts.filter(t => box(t).left < box(s).left - 1 || box(t).right > box(s).right + 1 ||
          box(t).top < box(s).top - 1 || box(t).bottom > box(s).bottom + 1).map(t => t.textContent),
      };
    }),
  }));
  parent.postMessage({name: window.name, client: width, scroll: document.documentElement.scrollWidth,
    wide: wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120)), figures,
    colours: [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]}, "*");
});
</script>
"""

_COLLECT = """
<pre id="found"></pre>
<script>
const found = [];
addEventListener("message", e => {
  found.push(e.data);
  document.getElementById("found").innerText = JSON.stringify(found);
});
</script>
"""


def measure(pages: dict[str, str], widths: tuple[int, ...], folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Lay out each page at each width, and say what a reader would see. A frame can be narrower than any window."""
    frames = []
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page.replace("</body>", f"{_MEASURE}</body>"), encoding="utf-8")
        frames += [f'<iframe name="{name} {w}" width="{w}" height="900" src="{name}.html"></iframe>' for w in widths]
    dom = _dump(_wrapped(_COLLECT + "".join(frames), folder))
    found = json.loads(html.unescape(dom.split('<pre id="found">')[1].split("</pre>")[0]))
    return {(entry["name"].split()[0], int(entry["name"].split()[1])): entry for entry in found}


def screenshot(page: str, widths: tuple[int, ...], height: int, folder: Path, dark: bool) -> Path:
    """A picture of the top of a page, at each width, side by side."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    frames = "".join(f'<iframe width="{width}" height="{height}" src="page.html"></iframe>' for width in widths)
    picture = folder / "picture.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    size = f"--window-size={sum(widths)},{height}"
    _run([scheme, size, f"--screenshot={picture}", _wrapped(frames, folder).as_uri()], folder)
    return picture


def _wrapped(body: str, folder: Path) -> Path:
    file = folder / "wrapped.html"
    style = "<style>body{margin:0;display:flex}iframe{border:0;flex:none}</style>"
    file.write_text(f'<!doctype html><meta charset="utf-8">{style}{body}', encoding="utf-8")
    return file


def _dump(page: Path) -> str:
    return _run(["--dump-dom", page.as_uri()], page.parent)


def _run(words: list[str], folder: Path) -> str:
    assert CHROMIUM is not None
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
