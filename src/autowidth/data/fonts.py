"""Font files -> the faces that can draw 0-9, A-Z and a-z, each glyph as a small picture.

    folders ──> files ──> Face: 62 glyphs, and how they stand on the line ──> parts that share no family

A file is left out, with the reason, when it cannot be read, lacks a glyph, draws symbols in place of letters, or draws
the same as another one. The fonts inside matplotlib are always at hand.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autowidth.errors import DataError

GLYPHS = string.digits + string.ascii_uppercase + string.ascii_lowercase
CLASSES = tuple(string.digits + string.ascii_uppercase)  # case-insensitive: a glyph's class is its capital
CELL = 64  # side of a glyph's picture, in texels
ROOM = 7  # texels left free on each side

_SUFFIXES = (".ttf", ".otf", ".ttc")
_TRUSTED = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "STIXGeneral.ttf", "STIXGeneralBolIta.ttf", "cmss10.ttf")
_LEAST_READABLE = 0.3  # of the glyphs must look most like their own class; symbols reach about 0.03

Pictures = NDArray[np.uint8]  # [glyphs, CELL, CELL]: how much of each texel is ink


@dataclass(frozen=True, eq=False)
class Face:
    """A font that can draw all characters. `rise`: the middle of each glyph above the line, in texels."""

    name: str
    family: str
    pictures: Pictures
    rise: NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """The faces that can be used, and why other files were left out."""

    faces: tuple[Face, ...]
    left_out: Mapping[str, str]


def font_files(folders: Iterable[Path], builtin: bool = True) -> dict[str, Path]:
    """Font files by the SHA-256 of their content, in the order of that: one file under two names counts once."""
    import matplotlib

    files = []
    for folder in [*folders, *([Path(matplotlib.get_data_path()) / "fonts" / "ttf"] if builtin else [])]:
        if not folder.is_dir():
            raise DataError(
                f"characters: the font folder {folder} does not exist. Name a folder of .ttf or .otf files."
            )
        files += sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    by_content: dict[str, Path] = {}
    for path in files:
        by_content.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return dict(sorted(by_content.items()))


def read_faces(files: Iterable[Path]) -> Found:
    """Every file that holds a usable Latin font."""
    faces: list[Face] = []
    left_out: dict[str, str] = {}
    seen: dict[bytes, str] = {}
    trusted = _trusted()
    for path in files:
        face = _read(path)
        if isinstance(face, str):
            left_out[str(path)] = face
            continue
        drawn = hashlib.sha256(face.pictures.tobytes()).digest()
        if _readable(face.pictures, trusted) < _LEAST_READABLE:
            left_out[str(path)] = "draws symbols in place of letters"
        elif drawn in seen:
            left_out[str(path)] = f"draws the same as {seen[drawn]}"
        else:
            seen[drawn] = face.name
            faces.append(face)
    return Found(tuple(faces), left_out)


def split_faces(found: Found, seed: int, share: float = 0.2) -> tuple[list[Face], list[Face]]:
    """Faces for the training part and, about `share` of them, for the test part; no family is in both."""
    kinship = [face.family for face in found.faces]
    if len(set(kinship)) == 1:  # one family: at least no font is in both
        kinship = [str(number) for number in range(len(found.faces))]
    families = sorted(set(kinship))
    if len(families) < 2:
        raise DataError(
            f"characters: there are {len(families)} usable fonts, and two are needed, one for training and one for "
            f"the test.{_reasons(found)} Name a folder of Latin fonts (.ttf, .otf) with 'fonts'."
        )
    random.Random(f"fonts {seed}").shuffle(families)
    wanted = max(1, round(share * len(found.faces)))
    chosen: set[str] = set()
    taken = 0
    for family in families[:-1]:
        members = kinship.count(family)
        if taken < wanted and (not taken or taken + members <= 1.5 * wanted):
            chosen.add(family)
            taken += members
    train = [face for face, family in zip(found.faces, kinship) if family not in chosen]
    return train, [face for face, family in zip(found.faces, kinship) if family in chosen]


def _reasons(found: Found) -> str:
    """Why files were left out, the first few."""
    said = [f"{Path(path).name} {why}" for path, why in sorted(found.left_out.items())]
    more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
    return f" Left out: {'; '.join(said[:3])}{more}." if said else " There is no font file at all."


# ---- one file --------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Face | str:
    """The face in a file, or why there is none."""
    from PIL import ImageFont

    try:
        font = ImageFont.truetype(path, CELL, layout_engine=ImageFont.Layout.BASIC)
        boxes = [font.getbbox(glyph, anchor="ls") for glyph in GLYPHS]
        largest = max(max(right - left, bottom - top) for left, top, right, bottom in boxes)
        if largest <= 0:
            return "lacks the characters"
        font = font.font_variant(size=CELL * (CELL - 2 * ROOM - 1) / largest)
        drawn = [_draw(font, glyph) for glyph in GLYPHS]
        absent = _draw(font, "\uffff")[0]
    except (OSError, ValueError, SyntaxError) as error:
        return f"cannot be read ({error})"
    missing = [g for g, (picture, _) in zip(GLYPHS, drawn) if picture.max() < 128 or np.array_equal(picture, absent)]
    if missing:
        return f"lacks {' '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}"
    family, style = (part or "unnamed" for part in font.getname())
    pictures, rise = zip(*drawn)
    return Face(f"{family} {style} ({path.name})", family, np.stack(pictures), np.array(rise, np.float32))


def _draw(font: object, glyph: str) -> tuple[Pictures, float]:
    """One glyph in the middle of its cell, and how far above the line its middle is."""
    from PIL import Image, ImageDraw, ImageFont

    assert isinstance(font, ImageFont.FreeTypeFont)
    left, top, right, bottom = font.getbbox(glyph, anchor="ls")
    x, y = CELL // 2 - (left + right) / 2, CELL // 2 - (top + bottom) / 2
    image = Image.new("L", (CELL, CELL))
    ImageDraw.Draw(image).text((round(x), round(y)), glyph, fill=255, font=font, anchor="ls")
    return np.asarray(image, np.uint8), -(top + bottom) / 2


# ---- does it draw letters? -------------------------------------------------------------------------------------------


def _trusted() -> NDArray[np.float32]:
    """What letters look like: [fonts, glyphs, features]."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    faces = [_read(folder / name) for name in _TRUSTED if (folder / name).is_file()]
    return np.stack([_features(face.pictures) for face in faces if isinstance(face, Face)])


def _readable(pictures: Pictures, trusted: NDArray[np.float32]) -> float:
    """Share of the glyphs that look most like a trusted glyph of their own class."""
    classes = np.array([CLASSES.index(glyph.upper()) for glyph in GLYPHS])
    likeness = np.einsum("gf,tkf->gtk", _features(pictures), trusted).max(1)
    return float((classes[likeness.argmax(1)] == classes).mean())


def _features(pictures: Pictures) -> NDArray[np.float32]:
    """Each glyph stretched over 16 x 16, mean 0, length 1."""
    from PIL import Image

    rows: list[NDArray[np.float32]] = []
    for picture in pictures:
        image = Image.fromarray(picture)
        small = image.crop(image.getbbox()).resize((16, 16), Image.Resampling.BOX)
        row = np.asarray(small, np.float32).ravel()
        row = row - row.mean()
        rows.append(row / max(float(np.linalg.norm(row)), 1e-6))
    return np.stack(rows)
