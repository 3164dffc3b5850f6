"""Rendered characters: the same bytes for the same order, fonts kept apart, a cache that heals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from autowidth import AutoWidthWarning, DataError
from autowidth.data import open_data
from autowidth.data.atlas import make_atlas, outline_distance
from autowidth.data.cache import cache_folder, cached
from autowidth.data.characters import BLOCK, render
from autowidth.data.draw import Look
from autowidth.data.fonts import CELL, CLASSES, GLYPHS, font_files, read_faces, split_faces

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SMALL = {"train": 216, "test": 108}


@pytest.fixture(scope="module")
def found():
    return read_faces(font_files([]).values())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOWIDTH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- fonts -----------------------------------------------------------------------------------------------------------


def test_matplotlib_brings_about_two_dozen_usable_fonts(found):
    assert 20 <= len(found.faces) <= 26
    assert {"DejaVu Sans", "DejaVu Serif", "STIXGeneral", "cmr10"} <= {face.family for face in found.faces}


def test_fonts_without_letters_are_left_out_with_the_reason(found):
    why = {Path(path).name: reason for path, reason in found.left_out.items()}
    assert why["cmsy10.ttf"] == "draws symbols in place of letters"
    assert why["LastResortHE-Regular.ttf"] == "draws symbols in place of letters"
    assert why["STIXSizOneSymReg.ttf"] == "lacks 0 1 2 3 4 ..."


def test_each_glyph_lies_whole_and_in_the_middle_of_its_cell(found):
    for face in found.faces:
        rows, columns = (face.pictures.max(axis) > 127 for axis in (2, 1))
        assert not rows[:, [0, -1]].any(), face.name
        assert not columns[:, [0, -1]].any(), face.name
        middles = (columns * np.arange(CELL)).sum(1) / columns.sum(1)
        assert np.abs(middles - (CELL - 1) / 2).max() < 6, face.name  # glyphs of several strokes lie off it a little


@pytest.mark.parametrize("seed", range(8))
def test_no_family_of_fonts_is_in_both_parts(found, seed):
    train, test = split_faces(found, seed)
    assert not {face.family for face in train} & {face.family for face in test}
    assert len(train) + len(test) == len(found.faces)
    assert 3 <= len(test) <= 8


def test_one_family_alone_is_split_by_fonts(found):
    family = tuple(face for face in found.faces if face.family == "STIXGeneral")
    train, test = split_faces(replace(found, faces=family), seed=0)
    assert len(test) == 1
    assert len(train) == len(family) - 1


def test_a_copy_of_a_font_counts_once_whatever_its_name(tmp_path):
    for name in ("a.ttf", "b.ttf"):
        shutil.copy(FONTS / "DejaVuSans.ttf", tmp_path / name)
    assert len(font_files([tmp_path], builtin=False)) == 1
    assert len(font_files([tmp_path])) == len(font_files([]))


def test_a_font_that_draws_the_same_counts_once(tmp_path):
    plain = (FONTS / "DejaVuSans.ttf").read_bytes()
    (tmp_path / "a.ttf").write_bytes(plain)
    (tmp_path / "b.ttf").write_bytes(plain + b"\0\0\0\0")  # other bytes, the same glyphs
    found = read_faces(font_files([tmp_path], builtin=False).values())
    assert len(found.faces) == 1
    assert "draws the same as DejaVu Sans" in next(iter(found.left_out.values()))


def test_no_usable_fonts(tmp_path, cache):
    (tmp_path / "fonts").mkdir()
    (tmp_path / "fonts" / "broken.ttf").write_bytes(b"no font at all")
    shutil.copy(FONTS / "cmsy10.ttf", tmp_path / "fonts")
    with pytest.raises(DataError) as error:
        open_data("characters", {**SMALL, "fonts": [str(tmp_path / "fonts")], "builtin": False})
    text = str(error.value)
    assert text.startswith("characters: there are 0 usable fonts, and two are needed, one for training and one for ")
    assert "broken.ttf cannot be read (unknown file format)" in text
    assert "cmsy10.ttf draws symbols in place of letters" in text
    assert text.endswith("Name a folder of Latin fonts (.ttf, .otf) with 'fonts'.")


def test_a_font_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"the font folder .*nowhere does not exist\. Name a folder of \.ttf or \.otf"):
        open_data("characters", {"fonts": [str(tmp_path / "nowhere")]})


# ---- distances -------------------------------------------------------------------------------------------------------


def test_the_distance_is_that_to_the_nearest_texel_of_the_other_side():
    ink = torch.zeros(1, 24, 24)
    ink[0, 6:17, 9:13] = 1
    distance = outline_distance(ink)[0]
    rows, columns = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    for here, there, sign in ((ink[0] > 0, ink[0] == 0, 1), (ink[0] == 0, ink[0] > 0, -1)):
        other = torch.stack([rows[there], columns[there]], 1).double()
        own = torch.stack([rows[here], columns[here]], 1).double()
        brute = (own[:, None] - other[None]).norm(dim=2).amin(1)
        torch.testing.assert_close(distance[here].double(), sign * brute.clamp(max=14), rtol=0, atol=1e-5)


def test_a_texel_half_inked_holds_the_outline():
    ink = torch.zeros(1, 16, 16)
    ink[0, :, 8:] = 1
    ink[0, :, 7] = 0.5
    assert outline_distance(ink)[0, 8, 5:11].tolist() == [-2, -1, 0, 1, 2, 3]


def test_the_atlas_inks_what_the_font_inks(found):
    face = found.faces[0]
    atlas = make_atlas([face])
    inked = (0.5 + atlas.distance).clamp(0, 1) > 0.5
    assert (inked.numpy() == (face.pictures > 127)).mean() > 0.99
    assert atlas.distance.shape == (len(GLYPHS), CELL, CELL)


# ---- images ----------------------------------------------------------------------------------------------------------


def test_the_same_bytes_for_any_number_of_threads(found):
    count, faces = BLOCK + 100, found.faces[:3]
    x, y = render(faces, count, 32, "seed", threads=1)
    torch.set_num_threads(2)
    try:
        again = render(faces, count, 32, "seed", threads=3)
    finally:
        assert torch.get_num_threads() == 2, "drawing leaves the number of threads as it was"
        torch.set_num_threads(1)
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])


def test_the_global_generator_is_left_alone(found):
    before = torch.get_rng_state()
    render(found.faces[:1], 40, 32, "seed")
    assert torch.equal(before, torch.get_rng_state())


def test_every_class_is_equally_frequent_and_another_seed_draws_others(found):
    x, y = render(found.faces[:3], 720, 32, "0")
    assert torch.bincount(y).tolist() == [20] * 36
    other, _ = render(found.faces[:3], 720, 32, "1")
    assert not torch.equal(x, other)


def test_images_are_as_varied_as_scenes(found):
    x, _ = render(found.faces, 1440, 32, "0")
    pixels = x.flatten(1).float()
    means, deviations = pixels.mean(1), pixels.std(1)
    assert means.std() > 25  # dark and light ones
    assert deviations.quantile(0.05) > 12  # none is blank
    middle, rim = x[:, 0, 12:20, 12:20].float().mean((1, 2)), x[:, 0, :, [0, -1]].float().mean((1, 2))
    assert 0.35 < (middle > rim).float().mean() < 0.65  # both polarities


@pytest.mark.parametrize("size", [24, 32])
def test_a_character_is_recognised_by_what_is_drawn_plainly(found, size):
    """Without dirt, images of a class look most like other images of this class, in fonts that were not seen."""
    plain = replace(Look(), turn=0.0, slant=0.0, stretch=0.0, perspective=0.0, waver_odds=0.0, rough_odds=0.0)
    plain = replace(plain, neighbour_odds=0.0, border_odds=0.0, hollow_odds=0.0, shadow_odds=0.0, edge_odds=0.0)
    plain = replace(plain, light=0.0, cloud=(0.0, 0.0), noise=(0.0, 0.0), shift=(0.0, 0.0), fill=(0.85, 0.85))
    train, test = split_faces(found, 0)
    (x, y), (u, v) = (render(faces, 1440, size, "plain", look=plain) for faces in (train, test))

    def features(images):
        small = torch.nn.functional.interpolate(images.float(), (16, 16), mode="area").flatten(1)
        return torch.nn.functional.normalize(small - small.mean(1, keepdim=True), dim=1)

    guess = y[(features(u) @ features(x).T).abs().argmax(1)]  # either polarity
    assert (guess == v).float().mean() > 0.75


# ---- the data set ----------------------------------------------------------------------------------------------------


def test_what_is_opened(cache):
    data = open_data("characters", {**SMALL, "seed": 3})
    assert data.name == "characters"
    assert data.shape == (1, 32, 32)
    assert data.classes == CLASSES
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.dtype == torch.int64
    assert (len(data.train), len(data.test)) == (216, 108)
    pixels = data.train.x.double() / 255
    assert data.mean == pytest.approx((pixels.mean().item(),))
    assert data.deviation == pytest.approx((pixels.std(correction=0).item(),))


def test_it_is_drawn_once_and_then_read(cache, monkeypatch):
    first = open_data("characters", SMALL)
    monkeypatch.setattr("autowidth.data.characters._make", lambda *_: pytest.fail("it was drawn again"))
    second = open_data("characters", SMALL)
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.test.y, second.test.y)


def test_another_order_is_another_file(cache):
    open_data("characters", SMALL)
    for change in ({"seed": 1}, {"train": 217}, {"size": 24}):
        open_data("characters", {**SMALL, **change})
    assert len(list(cache.glob("characters-*.safetensors"))) == 4
    assert [path for path in cache.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["cut", "bit", "text"])
def test_a_damaged_cache_file_is_drawn_again(cache, damage):
    first = open_data("characters", SMALL)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    data = bytearray(good)
    if damage == "bit":
        data[-5] ^= 1
    file.write_bytes({"cut": data[: len(data) // 2], "bit": data, "text": b"no tensors"}[damage])
    assert torch.equal(open_data("characters", SMALL).train.x, first.train.x)
    assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(
        AutoWidthWarning, match="characters: cannot keep what was made in .*; it will be made again next"
    ):
        data = open_data("characters", {**SMALL, "cache": str(tmp_path / "file")})
    assert len(data.train) == 216


def test_the_cache_is_where_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOWIDTH_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("AUTOWIDTH_CACHE")
    assert cache_folder().name == "autowidth"


def test_a_failure_leaves_no_file_behind(tmp_path):
    with pytest.raises(RuntimeError, match="half way"):
        cached(tmp_path, "kind", {}, lambda: (_ for _ in ()).throw(RuntimeError("half way")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"train": 0}, "characters: train is 0; it must be a whole number from 1 to 100,000,000."),
        ({"test": "many"}, "characters: test is 'many'; it must be a whole number from 1 to 100,000,000."),
        ({"size": 4}, "characters: size is 4; it must be a whole number from 12 to 128."),
        ({"seed": 0.5}, "characters: seed is 0.5; it must be a whole number of 0 or more."),
        ({"threads": 0}, "characters: threads is 0; it must be a whole number of 1 or more."),
        ({"builtin": "no"}, "characters: builtin is 'no'; it must be true or false."),
        ({"fonts": 3}, "characters: fonts is 3; it must be a name or a list of names."),
        ({"also": ["x.npz"]}, "also is ['x.npz']; it names further test sets, as in {'scenes': '/data/chars74k.npz'}."),
        ({"builtins": True}, "characters takes no argument 'builtins'. Did you mean 'builtin'?"),
    ],
)
def test_arguments_that_make_no_sense(cache, args, text):
    with pytest.raises(DataError) as error:
        open_data("characters", {**SMALL, **args})
    assert str(error.value) == text


# ---- further test sets -----------------------------------------------------------------------------------------------


def test_scenes_beside_it(cache, tmp_path):
    rng = np.random.default_rng(0)
    scenes = {
        "test_image": rng.integers(0, 256, (5, 20, 20, 3), np.uint8),  # in colour, of another size
        "test_label": np.array([0, 1, 2, 0, 1]),
        "classes": np.array(["b", "A", "7"]),  # in another order
    }
    np.savez(tmp_path / "scenes.npz", **scenes)
    data = open_data("characters", {**SMALL, "also": {"scenes": str(tmp_path / "scenes.npz")}})
    other = data.others["scenes"]
    assert other.x.shape == (5, 1, 32, 32)
    assert [data.classes[label] for label in other.y.tolist()] == ["B", "A", "7", "B", "A"]


def test_a_folder_of_scenes_beside_it(cache, tmp_path):
    from PIL import Image

    for name in ("a", "Q"):
        (tmp_path / "scenes" / name).mkdir(parents=True)
        Image.new("L", (32, 32), 77).save(tmp_path / "scenes" / name / "1.png")
    data = open_data("characters", {**SMALL, "also": {"scenes": str(tmp_path / "scenes")}})
    other = data.others["scenes"]
    assert sorted(data.classes[label] for label in other.y.tolist()) == ["A", "Q"]
    assert torch.equal(other.x, torch.full((2, 1, 32, 32), 77, dtype=torch.uint8))


def test_scenes_of_other_classes_are_refused(cache, tmp_path):
    images = {"test_image": np.zeros((1, 32, 32), np.uint8), "test_label": np.array([0]), "classes": np.array(["%"])}
    np.savez(tmp_path / "scenes.npz", **images)
    with pytest.raises(DataError, match="the class '%' is none of the 36 classes of the training part"):
        open_data("characters", {**SMALL, "also": {"scenes": str(tmp_path / "scenes.npz")}})


@pytest.mark.shared
def test_real_scenes_beside_it(cache, data_folder):
    data = open_data("characters", {**SMALL, "also": {"scenes": str(data_folder / "chars74k.npz")}})
    assert data.others["scenes"].x.shape == (3249, 1, 32, 32)
    drawn, real = data.train.x.float(), data.others["scenes"].x.float()
    assert abs(drawn.mean() - real.mean()) < 20
    assert abs(drawn.flatten(1).std(1).mean() - real.flatten(1).std(1).mean()) < 12
