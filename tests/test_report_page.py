"""The page: one file, safe names, and what a reader sees on a phone and on a desk, measured in a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources

import pytest
from PIL import Image

from autowidth.report.html import to_html
from autowidth.report.plots import plots
from autowidth.report.runs import report_runs
from autowidth.train.folder import open_run
from browser import CHROMIUM, measure, screenshot
from runs_made import make_run

HOSTILE = "x<script>alert(1)</script> & \"q\" 'p' $\\frac{1}{2}$ ]]> &lt;b&gt; 数字"
LONG = "a_name_without_any_place_to_break_it_that_goes_on_and_on_and_on_and_on_for_a_hundred_letters_or_so_it_is_long"
DEEP = tuple(
    (f"layer{s}.{b}.conv{c}", 64 * s, 40 * s - 3 * b, 576 * s)
    for s in (1, 2, 3, 4)
    for b in range(5)
    for c in (1, 2, 3)
)
VOID = {"meta", "link", "br", "hr", "img"}


@pytest.fixture(scope="session")  # in any order they are drawn and laid out once
def pages(tmp_path_factory):
    """A page for one run, for five, for twenty (some of them deep), for hostile names, and for an unfinished run."""
    at = tmp_path_factory.mktemp("runs")
    five = [("gs-1", 1.4, 92.4), ("gs-3", 1.2, 92.2), ("gs-5", 1.0, 92.1), ("gs-9", 0.6, 90.0)]
    hostile = {"penalty": HOSTILE, "net": HOSTILE, "data": LONG, "layers": ((HOSTILE, 9, 3, 4), (LONG, 70_000, 9, 4)),
               "result": {"others": {LONG: {"loss": 1, "accuracy": 3}}}}  # fmt: skip
    runs = {
        "one": [make_run(at / "demo")],
        "five": [make_run(at / "plain", penalty=None, accuracy=91.8)]
        + [make_run(at / name, keep=keep, accuracy=accuracy) for name, keep, accuracy in five],
        "twenty": [make_run(at / f"sweep-{k:02}", **_of_twenty(k)) for k in range(20)],
        "hostile": [make_run(at / (HOSTILE.replace("/", "∕") + str(k)), keep=1 - k / 9, **hostile) for k in range(2)]
        + [make_run(at / LONG, keep=0.2, seed=3)],
        "going": [make_run(at / "going", done=1)],
    }
    return {name: to_html(report_runs([open_run(f) for f in folders])) for name, folders in runs.items()}


def _of_twenty(k: int) -> dict[str, object]:
    deep = {"layers": DEEP, "net": "resnet182"} if k in (1, 2) else {}
    penalty = None if k == 0 else "GroupLasso()"
    return {"penalty": penalty, "keep": 1 - k / 30, "accuracy": 92 - k * k / 40, "latency": k % 2 == 0, **deep}


class Outline(HTMLParser):
    """Tags that are opened and closed in order; ids, and what refers to them or elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action", "data"):
                self.links.append(value)
            self.links += [f"#{found}" for found in re.findall(r"url\(#(.*?)\)", value or "")]
            assert not name.startswith("on"), f"<{tag} {name}=...> runs a script"

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["one", "five", "twenty", "hostile", "going"])
def test_the_page_is_one_file_of_sound_html(pages, name):
    outline = Outline(pages[name])
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids)), "the ids of two plots are the same"
    assert all(link.startswith(("#", "data:")) for link in outline.links), "the page needs another file"
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert not {"script", "img", "iframe", "object", "form"} & set(outline.tags)
    assert outline.tags.count("h1") == 1
    assert "main" in outline.tags
    assert "@import" not in pages[name]


def test_names_are_words_and_nothing_else(pages):
    assert "<script" not in pages["hostile"]
    assert "<b>" not in pages["hostile"]
    assert "x&lt;script&gt;alert(1)&lt;∕script&gt; &amp; &quot;q&quot; &#x27;p&#x27; $\\frac{1}{2}$" in pages["hostile"]


def test_the_first_screen_says_what_was_learned(pages):
    body = pages["one"].split("<body>")[1]
    assert (
        "dec3 keeps 228,200 of 1,163,236 parameters (total induced 80.4\u00a0%) at 92.1\u00a0% accuracy." in body[:600]
    )
    assert body.index('class="facts"') < body.index('id="results"') < body.index('id="plots"') < body.index('id="made"')


def test_how_it_was_made_is_told(pages):
    made = pages["one"].split('id="made"')[1]
    for word in (
        "2026-11-19",
        "AMD EPYC",
        "torch 2.9.0",
        "autowidth train characters-dec3 seed=0",
        "&quot;threshold&quot;: 0.0",
    ):
        assert word in made, word


def test_the_same_report_is_the_same_page(tmp_path):
    report = report_runs([open_run(make_run(tmp_path / "demo"))])
    assert to_html(report) == to_html(report)


def test_many_recipes_are_folded_and_none_is_lost(tmp_path):
    runs = [make_run(tmp_path / f"gs-{k}", keep=1 - k / 20) for k in range(8)]
    shown, folded = plots(report_runs([open_run(f) for f in runs]))
    assert len(shown) <= 5
    bars = [plot.title for plot in (*shown, *folded) if "before and after" in plot.title]
    assert sorted(bars) == sorted(f"gs-{k}: neurons per layer, before and after" for k in range(8))


# ---- in a browser ----------------------------------------------------------------------------------------------------

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")


@pytest.fixture(scope="session")  # in any order they are drawn and laid out once
def laid_out(pages, tmp_path_factory):
    return measure(pages, (390, 1280), tmp_path_factory.mktemp("browser"))


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["one", "five", "twenty", "hostile", "going"])
def test_nothing_is_wider_than_the_page(laid_out, name, width):
    seen = laid_out[name, width]
    assert seen["client"] == width
    assert seen["wide"] == []
    assert seen["scroll"] <= width


@in_a_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["one", "five", "twenty", "hostile", "going"])
def test_every_plot_can_be_read(laid_out, name, width):
    figures = laid_out[name, width]["figures"]
    assert len(figures) >= {"one": 4, "five": 10, "twenty": 40, "hostile": 5, "going": 1}[name]
    for figure in figures:
        title = figure["title"]
        assert title
        assert figure["legend_fits"], title
        assert figure["panels"], title
        for panel in figure["panels"]:
            axes = [text for text in panel["texts"] if re.fullmatch(r".+ \(.+\).*", text)]
            assert len(axes) >= 2, f"{title}: an axis without a unit, of {panel['texts']}"
            assert panel["cut"] == [], f"{title}: text is cut off"
            assert panel["smallest"] >= 8, title
            assert panel["width"] >= 330, title
        assert len(figure["legend"]) == len(set(figure["legend"]))
        if "neurons per layer" in title.lower():
            assert figure["legend"] == ["before", "after"]
        if "Loss" in title:
            assert {"validation", "training, running mean"} <= set(figure["legend"])


@in_a_browser
def test_the_legend_names_every_series(laid_out):
    figures = {figure["title"]: figure["legend"] for figure in laid_out["five", 390]["figures"]}
    names = ["plain", "gs-1", "gs-3", "gs-5", "gs-9"]
    assert figures["Loss and accuracy over the epochs"][:5] == names
    assert figures["Speed-up at test time"] == names[1:]
    assert figures["Accuracy against size"] == ["trained with a penalty", "plain network"]
    assert figures["gs-5: width of every layer over the epochs"][0] == "conv1v"


@in_a_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_screenshot_is_legible_in_both_schemes(pages, tmp_path, dark):
    """Text stands out from its background by the contrast of WCAG AAA, and the page is not empty."""
    both = Image.open(screenshot(pages["five"], (390, 1280), 900, tmp_path, dark)).convert("L")
    for left, right in ((0, 390), (390, 1670)):
        picture = both.crop((left, 0, right, 900))
        counts = picture.histogram()
        ground = max(range(256), key=lambda level: counts[level])
        assert (ground < 40) if dark else (ground > 240)
        darkest, lightest = picture.getextrema()
        assert _contrast(ground, lightest if dark else darkest) >= 7
        drawn = sum(n for level, n in enumerate(counts) if abs(level - ground) > 40) / sum(counts)
        assert 0.01 < drawn < 0.5


def _contrast(a: int, b: int) -> float:
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(level: int) -> float:
    share = level / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def test_the_colours_of_both_schemes_can_be_told_from_their_background():
    """Series at 3 to 1, as WCAG asks of graphics; text at 4.5 to 1."""
    css = resources.files("autowidth.report").joinpath("page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w]+): (#\w{6})", part)) for part in css.split("@media (prefers-color-scheme: dark)")[:2]
    )
    for scheme in (light, dark):
        for name, colour in scheme.items():
            need = 4.5 if name in ("ink", "muted") else 3.0 if re.fullmatch(r"s\d", name) else 1.0
            assert min(_contrast_of(colour, scheme["paper"]), _contrast_of(colour, scheme["card"])) >= need, (
                name,
                colour,
            )


def _contrast_of(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        red, green, blue = (_luminance(int(colour[k : k + 2], 16)) for k in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
