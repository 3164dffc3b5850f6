"""Image folders, read when they are needed; and data sets of the library `datasets`."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from autowidth import AutoWidthWarning, DataError, MissingExtraError
from autowidth.data import open_data
from autowidth.data.given import extra
from vision import torchvision

COLORS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


@pytest.fixture
def folder(tmp_path):
    """Two classes, 6 training and 2 test images of each; the left half of each image is black."""
    torchvision()
    for part, count in (("train", 6), ("val", 2)):
        for name, color in COLORS.items():
            place = tmp_path / part / name
            place.mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (48, 32), color)
                image.paste((0, 0, 0), (0, 0, 24, 32))
                image.save(place / f"{number}.png")
    return tmp_path


def said(args: dict, name: str = "images") -> str:
    with pytest.raises(DataError) as error:
        open_data(name, args)
    return str(error.value)


def test_what_is_opened(folder):
    data = open_data("images", {"folder": str(folder), "size": 28})
    assert (len(data.train), len(data.test)) == (12, 4)
    assert data.shape == (3, 28, 28)
    assert data.classes == ("blue", "red")
    image, label = data.test.dataset[3]
    assert image.dtype == torch.uint8
    assert image.shape == (3, 28, 28)
    assert label == 1
    assert image[:, 14, 25].tolist() == [255, 0, 0]


def test_the_test_part_is_cut_from_the_middle_and_never_changes(folder):
    data = open_data("images", {"folder": str(folder), "size": 28, "resize": 32})
    first, again = data.test.dataset[0][0], data.test.dataset[0][0]
    assert torch.equal(first, again)
    assert first[2, 14].tolist() == [0] * 14 + [255] * 14  # 48 x 32: the middle 28 columns, half of them black


def test_the_training_part_is_cut_anywhere_and_mirrored(folder):
    data = open_data("images", {"folder": str(folder), "size": 28, "resize": 32})
    images = torch.stack([data.train.dataset[0][0][2, 14] for _ in range(40)])
    dark = (images == 0).sum(1)
    assert len(set(dark.tolist())) > 5  # crops at many places
    mirrored = (images[:, 0] > images[:, -1]).float().mean()
    assert 0.2 < mirrored < 0.8
    still = open_data("images", {"folder": str(folder), "size": 28, "resize": 32, "flip": None})
    images = torch.stack([still.train.dataset[0][0][2, 14] for _ in range(40)])
    assert (images[:, 0] <= images[:, -1]).all()


def test_gray(folder):
    data = open_data("images", {"folder": str(folder), "size": 28, "gray": True})
    assert data.shape == (1, 28, 28)
    assert data.train.dataset[0][0].shape == (1, 28, 28)
    assert len(data.mean) == 1


def test_a_loader_reads_it_and_its_workers_get_it_by_pickle(folder):
    data = open_data("images", {"folder": str(folder), "size": 28})
    sent = pickle.loads(pickle.dumps(data.train.dataset))
    loader = DataLoader(sent, batch_size=5)
    labels = torch.cat([y for _, y in loader])
    assert labels.tolist() == [0] * 6 + [1] * 6


def test_imagenet_is_normalised_as_usual_and_counted(folder):
    data = open_data("imagenet", {"folder": str(folder), "size": 28, "classes": 2})
    assert data.mean == (0.485, 0.456, 0.406)
    assert said({"folder": str(folder)}, "imagenet").startswith(
        f"imagenet: {folder}: 2 classes, and 1000 were expected. Check that it is whole and the right one;"
    )
    assert "2 classes, and 401 were expected" in said({"folder": str(folder)}, "places2")


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_a_missing_part(folder):
    (folder / "val").rename(folder / "evaluation")
    assert said({"folder": str(folder)}) == (
        f"images: {folder} must hold a folder 'train' and one of 'val', 'valid', 'validation', 'test', each with a "
        "folder per class. It holds: evaluation, train."
    )


def test_an_empty_class(folder):
    (folder / "train" / "green").mkdir()
    (folder / "train" / "green" / "notes.txt").write_text("none yet")
    assert said({"folder": str(folder)}).startswith(
        f"images: {folder / 'train'}: the class folder 'green' holds no image (.jpg, .jpeg, "
    )


def test_images_that_are_not_sorted_into_folders(folder):
    for file in (folder / "val").rglob("*.png"):
        file.rename(folder / "val" / f"{file.parent.name}{file.name}")
    for name in COLORS:
        (folder / "val" / name).rmdir()
    assert said({"folder": str(folder)}) == (
        f"images: {folder / 'val'} holds no folders, and it needs one per class. 4 images lie there unsorted: move "
        "each into a folder of its class."
    )


def test_a_class_that_was_not_trained_on(folder):
    (folder / "val" / "red").rename(folder / "val" / "rot")
    assert said({"folder": str(folder)}) == (
        f"images: {folder / 'val'} has the class 'rot', which the training part does not have."
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"size": 0}, "images: size is 0; it must be a whole number of 1 or more."),
        ({"size": 28, "resize": 20}, "images: resize is 20; it must be a whole number of 28 or more."),
        ({"flip": 2}, "images: flip is 2; it must be a share above 0 and below 1, as 0.1."),
    ],
)
def test_arguments_that_make_no_sense(folder, args, text):
    assert said({"folder": str(folder), **args}) == text


def test_without_torchvision(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision.transforms.v2", None)
    with pytest.raises(MissingExtraError, match=r"reading image folders needs torchvision, .*'autowidth\[vision\]'"):
        open_data("images", {"folder": str(folder), "size": 28})


def test_an_extra_names_itself():
    with pytest.raises(MissingExtraError, match=r"a dream needs no_such_module, which cannot be imported here"):
        extra("no_such_module.inner", "data", "a dream")


# ---- corrupt images --------------------------------------------------------------------------------------------------


def damage(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / "train" / "blue" / name
        file.write_bytes(file.read_bytes()[:60])


def test_a_corrupt_image_gives_place_to_the_next_good_one(folder):
    data = open_data("images", {"folder": str(folder), "size": 28, "corrupt": 2})  # measured while all were good
    damage(folder, "4.png", "5.png")
    with pytest.warns(AutoWidthWarning) as warned:
        _, label = data.train.dataset[4]
    assert label == 1  # 4 and 5 are damaged, and 6 is the first red one
    message = str(warned[0].message)
    assert message.startswith(f"images: {folder / 'train'}: {folder / 'train' / 'blue' / '4.png'} cannot be read (")
    assert message.endswith("and is skipped; 1 so far, 2 are allowed.")
    assert "2 so far" in str(warned[1].message)
    assert data.train.dataset[5][1] == 1  # known by now: no second warning


@pytest.mark.filterwarnings("ignore::autowidth.AutoWidthWarning")  # of the one that is allowed
def test_too_many_corrupt_images_stop_the_run(folder):
    data = open_data("images", {"folder": str(folder), "size": 28})
    damage(folder, "0.png", "1.png")
    data.train.dataset[2]
    with pytest.raises(DataError) as error:
        data.train.dataset[0]
    text = str(error.value)
    assert text.startswith(f"images: {folder / 'train'}: 2 images cannot be read, and 1 are allowed. The last is ")
    assert text.endswith("Take them out or copy the data again, or raise the limit with 'corrupt'.")


def test_an_index_beyond_the_end_ends_a_loop(folder):
    data = open_data("images", {"folder": str(folder), "size": 28})
    with pytest.raises(IndexError, match="sample 12 of 12"):
        data.train.dataset[12]


# ---- the library `datasets` ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["blue", "red"])})
    parts = {}
    for part, count in (("train", 6), ("test", 4)):
        images = [np.full((8, 8, 3), COLORS["red" if n % 2 else "blue"], np.uint8) for n in range(count)]
        rows = {"img": [Image.fromarray(image) for image in images], "label": [n % 2 for n in range(count)]}
        parts[part] = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    for part, rows in parts.items():
        rows.to_parquet(tmp_path / f"{part}.parquet")
    return tmp_path


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_a_saved_data_set(saved, form):
    files = {"train": str(saved / "train.parquet"), "test": str(saved / "test.parquet")}
    data = open_data("huggingface", {"folder": str(saved / "saved")} if form == "folder" else files)
    assert data.classes == ("blue", "red")
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.train.x[:, :, 0, 0].tolist() == [[0, 0, 255], [255, 0, 0]] * 3


def test_its_images_resized_and_gray(saved):
    data = open_data("huggingface", {"folder": str(saved / "saved"), "size": 5, "gray": True})
    assert data.shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            {},
            "huggingface: give one of 'name' (of a data set), 'folder' (that save_to_disk wrote), or 'train' and",
        ),
        ({"folder": "saved", "label": "lable"}, "has no column 'lable'. Did you mean 'label'?"),
        ({"folder": "saved", "test": "tests"}, "has no split 'tests'. Did you mean 'test'?"),
        ({"folder": "saved", "image": "label"}, "the column 'label' holds no images. Name another with 'image'."),
        ({"folder": "saved", "classes": 3}, "2 classes, and 3 were expected."),
        ({"folder": "."}, "cannot be loaded: FileNotFoundError"),
    ],
)
def test_what_cannot_be_opened(saved, monkeypatch, args, text):
    monkeypatch.chdir(saved)
    assert text in said(args, "huggingface")
