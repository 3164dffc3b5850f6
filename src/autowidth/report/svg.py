"""Matplotlib figures as SVG that can be inlined into a page, many of them, light or dark.

Colours are drawn as stand-ins and become CSS variables of the page; text stays text, in the font of the page; ids get a
prefix, since those of two figures on one page must not be the same. Nothing of pyplot, no state that stays.
"""

from __future__ import annotations

import io
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

WIDTH = 5.0  # inches: 360 units, about the width of a phone, so that a unit is a pixel there

# Stand-ins: no two are alike, and none of them is drawn for any other reason.
INK, MUTED, LINE, BEFORE, PAPER = "#101112", "#606162", "#d0d1d2", "#b0b1b2", "#fafbfc"
SERIES = ("#1f6fb1", "#c8501b", "#00795c", "#9b4f97", "#8a6a01", "#3d7f8b")
DASHES = ("solid", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.6, 1.4, 1.6)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
_VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", BEFORE: "before", PAPER: "paper"} | {
    colour: f"s{n}" for n, colour in enumerate(SERIES)
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "autowidth",  # the same figure is the same text
    "text.parse_math": False,  # names come from users: a dollar is a dollar
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
}

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def variable(colour: str) -> str:
    """The CSS variable that stands for a colour, for what is drawn outside of Matplotlib."""
    return f"var(--{_VARIABLES[colour]})"


def draw(paint: Callable[[Figure], None], height: float, label: str, prefix: str) -> str:
    """What `paint` draws, `height` inches high, as an <svg> element; `label` is read out in its place."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The page's fonts have the letters that Matplotlib's own lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        matplotlib.rcdefaults()  # a user's own style would not be legible in both schemes
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, dpi=144, metadata={"Date": None, "Creator": None})
    return _inlined(ET.fromstring(buffer.getvalue()), label, prefix)


def _inlined(svg: ET.Element, label: str, prefix: str) -> str:
    for parent in svg.iter():
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
        for name, value in list(parent.attrib.items()):
            parent.set(name, _value(name, value, prefix))
    for name in ("width", "height", "version"):
        svg.attrib.pop(name, None)
    svg.set("role", "img")
    svg.set("aria-label", label)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(svg, encoding="unicode")


def _value(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{prefix}-", 1) if value.startswith("#") else value
    value = value.replace("url(#", f"url(#{prefix}-")
    if name != "style":
        return value
    parts = [part.strip() for part in value.split(";")]
    return "; ".join(filter(None, map(_declaration, parts)))


def _declaration(text: str) -> str:
    """One CSS declaration: a colour becomes a variable, a font keeps its size alone."""
    key, _, value = (part.strip() for part in text.partition(":"))
    if key == "font":
        size = next(word for word in value.split() if word.endswith("px"))
        weight = "font-weight: 600; " if "bold" in value or "700" in value else ""
        return f"{weight}font-size: {size}"
    if key in ("fill", "stroke") and value in _VARIABLES:
        return f"{key}: {variable(value)}"
    return text
