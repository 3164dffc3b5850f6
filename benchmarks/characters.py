"""How fast are characters drawn, with which fonts, and what do they look like?

    python benchmarks/characters.py                 writes results/characters.md and results/characters.png
    python benchmarks/characters.py --fonts FOLDER  the same with further fonts

Only the drawing is timed, then the whole of opening: finding and reading fonts, drawing, writing to the cache; and
opening once more, from the cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean, stdev

import PIL
import torch
from PIL import Image

from autowidth.data import open_data
from autowidth.data.characters import TEST, TRAIN, render
from autowidth.data.fonts import Face, font_files, read_faces, split_faces

RESULTS = Path(__file__).resolve().parent / "results"
COUNT, REPEATS = 10_240, 3
ROWS = 6  # of the contact sheet; a column for each class


def speed(faces: Sequence[Face], threads: int) -> tuple[list[float], list[float]]:
    """Images a second, and images a second that a core worked on them, several times over."""
    rates, worked = [], []
    for repeat in range(REPEATS):
        start, busy = time.perf_counter(), time.process_time()
        render(faces, COUNT, 32, f"speed {repeat}", threads)
        rates.append(COUNT / (time.perf_counter() - start))
        worked.append(COUNT / (time.process_time() - busy))
    return rates, worked


def whole(fonts: list[str]) -> tuple[float, float]:
    """Seconds for the data set in its usual size: drawn, and read again."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            start = time.perf_counter()
            open_data("characters", {"fonts": fonts, "cache": folder})
            times.append(time.perf_counter() - start)
    return times[0], times[1]


def contact_sheet(faces: Sequence[Face], file: Path) -> None:
    """A column of images for each class."""
    x, y = render(faces, 36 * ROWS, 32, "sheet")
    columns = [torch.cat(list(x[y == number, 0])) for number in range(36)]
    Image.fromarray(torch.cat(columns, 1).numpy()).save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fonts", nargs="*", default=[], metavar="FOLDER", help="folders of further fonts")
    fonts = parser.parse_args().fonts
    found = read_faces(font_files([Path(folder) for folder in fonts]).values())
    train, test = split_faces(found, seed=0)
    lines = [
        "# Rendered characters",
        "",
        f"- date: {date.today()}; machine: {platform.machine()}, {os.cpu_count()} cores; torch {torch.__version__}, "
        f"pillow {PIL.__version__}",
        f"- command: `python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}`",
        f"- load of the machine at the start, other work included: {os.getloadavg()[0]:.1f}",
        f"- {len(found.faces)} usable fonts: {len(train)} to train on, {len(test)} to test on, no family in both",
        f"- {COUNT:,} images a run, {REPEATS} runs, mean and deviation; from font pictures in memory to 32 x 32",
        "- the last column is in processor time, which suffers less, though it suffers, from other work on the machine",
        "",
        "| threads | images a second | images a second of one core's work |",
        "| ---: | ---: | ---: |",
    ]
    for threads in (1, 2):
        rates = [f"{mean(some):,.0f} +- {stdev(some):,.0f}" for some in speed(train, threads)]
        lines.append(f"| {threads} | {' | '.join(rates)} |")
        print(lines[-1], flush=True)
    drawn, read = whole(fonts)
    lines += [
        "",
        f"Opening the data set in its usual size, {TRAIN:,} and {TEST:,} images of 32 x 32, all included: {drawn:.1f} "
        f"s drawn and kept ({(TRAIN + TEST) / drawn:,.0f} images a second), {read:.1f} s read from the cache.",
        "",
        "A column for each class, fonts of the training part:",
        "",
        "![rendered characters](characters.png)",
        "",
        "| fonts to train on | fonts to test on |",
        "| --- | --- |",
    ]
    names = [sorted(face.name for face in faces) for faces in (train, test)]
    for row in range(max(map(len, names))):
        lines.append(f"| {' | '.join(part[row] if row < len(part) else '' for part in names)} |")
    RESULTS.mkdir(exist_ok=True)
    contact_sheet(train, RESULTS / "characters.png")
    (RESULTS / "characters.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
