"""Data sets by name: what is opened is what was written, and what is wrong is said in words."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autowidth import AutoWidthWarning, DataError
from autowidth.data import NAMES, open_data
from autowidth.data.statistics import channel_statistics, feature_statistics

RNG_SEED = 0


def archive(path: Path, **changes) -> Path:
    """A small data set of 3 classes; None takes an array out."""
    rng = np.random.default_rng(RNG_SEED)
    arrays = {
        "train_image": rng.integers(0, 256, (9, 8, 8), np.uint8),
        "train_label": np.arange(9, dtype=np.uint8) % 3,
        "test_image": rng.integers(0, 256, (4, 8, 8), np.uint8),
        "test_label": np.array([0, 1, 2, 0], np.uint8),
        "classes": np.array(["one", "two", "three"]),
    }
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def streams(images: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(images), np.uint8), np.cumsum([0, *map(len, images)])


def encoded(color: object, mode: str = "RGB", size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (size, size), color).save(file, "PNG")
    return file.getvalue()


def said(name: str, args: dict) -> str:
    with pytest.raises(DataError) as error:
        open_data(name, args)
    return str(error.value)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_every_name_has_a_line():
    assert "characters" in NAMES
    assert [name for name, line in NAMES.items() if not line.endswith(".") or "\n" in line] == []


def test_an_unknown_name():
    assert said("cifar11", {}) == "there is no data set 'cifar11'. Did you mean 'cifar10' or 'cifar100'?"
    assert said("zzz", {}).startswith("there is no data set 'zzz'. Known: characters, chars74k, cifar10, cifar100, ")


def test_an_unknown_argument():
    assert said("mnist", {"folders": "x"}) == "mnist takes no argument 'folders'. Did you mean 'folder'?"


def test_a_missing_argument():
    assert said("table", {"file": "x.csv"}) == "table needs 'target', as in {'target': ...}."


def test_where_does_it_lie(monkeypatch, tmp_path):
    monkeypatch.delenv("AUTOWIDTH_DATA", raising=False)
    assert said("mnist", {}) == (
        "mnist: where does it lie? Give its folder, as in {'folder': '/data/mnist'}, or set AUTOWIDTH_DATA to it. "
        "Nothing is downloaded."
    )
    monkeypatch.setenv("AUTOWIDTH_DATA", str(tmp_path))
    assert said("mnist", {}).startswith(f"mnist: {tmp_path} holds neither mnist.npz nor train-images-idx3-ubyte")


def test_a_missing_folder(tmp_path):
    assert said("cifar10", {"folder": str(tmp_path / "none")}) == (
        f"cifar10: the folder {tmp_path / 'none'} does not exist. Check the path; nothing is downloaded."
    )


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "x").write_text("")
    assert "is a file, not a folder" in said("images", {"folder": str(tmp_path / "x")})


def test_a_missing_file_names_the_nearest(tmp_path):
    archive(tmp_path / "digits.npz")
    expected = f"npz: the file {tmp_path / 'digit.npz'} does not exist. Did you mean {tmp_path / 'digits.npz'}?"
    assert said("npz", {"file": str(tmp_path / "digit.npz")}) == expected


# ---- archives --------------------------------------------------------------------------------------------------------


def test_an_archive(tmp_path):
    file = archive(tmp_path / "x.npz")
    data = open_data("npz", {"file": str(file)})
    with np.load(file) as arrays:
        assert np.array_equal(data.train.x[:, 0].numpy(), arrays["train_image"])
        assert data.test.y.tolist() == arrays["test_label"].tolist()
    assert data.classes == ("one", "two", "three")
    assert data.shape == (1, 8, 8)


def test_encoded_images_gray_among_colour(tmp_path):
    stream, offset = streams([encoded((255, 0, 0)), encoded(7, "L"), encoded((1, 2, 3))])
    changes = {"train_image": None, "train_jpeg": stream, "train_offset": offset, "train_label": np.arange(3)}
    test = {"test_image": np.zeros((4, 3, 8, 8), np.uint8)}
    data = open_data("npz", {"file": str(archive(tmp_path / "x.npz", **changes, **test))})
    assert data.train.x[:, :, 0, 0].tolist() == [[255, 0, 0], [7, 7, 7], [1, 2, 3]]


def test_keras_archives_are_read(tmp_path):
    x, y = np.zeros((3, 4, 4, 3), np.uint8), np.array([[0], [1], [2]])
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = open_data("npz", {"file": str(tmp_path / "x.npz")})
    assert data.shape == (3, 4, 4)
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"train_label": np.array([0, 1, 2, 0, 1, 2, 0, 1, 3])},
            "sample 8 has the label 3, and there are 3 classes, numbered from 0 to 2. 1 of 9 labels are out of range.",
        ),
        ({"train_label": np.array([-1, 1, 2, 0, 1, 2, 0, 1, 0])}, "sample 0 has the label -1, and there are 3 classes"),
        ({"train_label": np.arange(9) % 2}, "no sample of 'three'. A network cannot learn a class that it never sees"),
        ({"train_label": np.arange(8) % 3}, "there are 9 samples and 8 labels. Each sample needs one label."),
        ({"train_label": np.zeros(9)}, "labels must be whole numbers, one a sample; these are float64 (9,)."),
        ({"train_image": np.zeros((9, 8, 8))}, "images must be uint8 [samples, height, width] or [samples, channels"),
        (
            {"test_image": np.zeros((4, 9, 9), np.uint8)},
            "images are 1 x 9 x 9, and those of the training part 1 x 8 x 8",
        ),
        ({"test_label": None}, "is missing: it needs test_image or test_jpeg, and test_label. It holds: classes, "),
        ({"classes": np.array(["a", "a", "b"])}, "names a class twice."),
        ({"train_image": np.zeros((0, 8, 8), np.uint8), "train_label": np.zeros(0, int)}, "is empty: there is not one"),
        ({"train_image": None, "train_jpeg": np.zeros(9, np.uint8)}, "has no train_offset, which says where each"),
    ],
)
def test_archives_that_are_not_what_they_should_be(tmp_path, changes, text):
    message = said("npz", {"file": str(archive(tmp_path / "x.npz", **changes))})
    assert text in message
    assert str(tmp_path / "x.npz") in message


def test_the_wrong_class_count(tmp_path):
    file = archive(tmp_path / "x.npz")
    assert said("npz", {"file": str(file), "classes": 10}) == (
        f"npz: {file}: 3 classes, and 10 were expected. Check that it is whole and the right one; where it is right as "
        "it is, say so with 'classes': 3."
    )
    archive(tmp_path / "cifar10.npz")
    assert "3 classes, and 10 were expected" in said("cifar10", {"folder": str(tmp_path)})


@pytest.mark.parametrize("damage", ["cut", "text", "middle", "empty"])
def test_a_damaged_archive(tmp_path, damage):
    file = archive(tmp_path / "x.npz")
    data = bytearray(file.read_bytes())
    data[300:330] = bytes(30)
    file.write_bytes({"cut": data[:-200], "text": b"hello", "middle": data, "empty": b""}[damage])
    message = said("npz", {"file": str(file)})
    assert message.startswith(f"npz: {file} is damaged or no .npz archive: ")
    assert message.endswith("Copy or make it again.")


def test_an_archive_is_never_unpickled(tmp_path):
    file = archive(tmp_path / "x.npz", classes=np.array([{"a": 1}, 2, 3], object))
    assert "allow_pickle=False" in said("npz", {"file": str(file)})


def test_offsets_that_do_not_fit(tmp_path):
    stream, offset = streams([encoded(1, "L")] * 3)
    changes = {"train_image": None, "train_jpeg": stream[:-1], "train_offset": offset, "train_label": np.arange(3)}
    assert "its offsets do not fit its stream of" in said("npz", {"file": str(archive(tmp_path / "x.npz", **changes))})


# ---- corrupt images --------------------------------------------------------------------------------------------------


def corrupt_archive(path: Path, corrupt: int) -> Path:
    images = [b"no image" if number < corrupt else encoded(number, "L") for number in range(12)]
    stream, offset = streams(images)
    labels = np.arange(12) % 3
    return archive(path, train_image=None, train_jpeg=stream, train_offset=offset, train_label=labels)


def test_a_corrupt_image_is_named_counted_and_skipped(tmp_path):
    file = corrupt_archive(tmp_path / "x.npz", 1)
    with pytest.warns(AutoWidthWarning) as warned:
        data = open_data("npz", {"file": str(file)})
    assert str(warned[0].message) == (
        f"npz: the train part of {file}: image 0 cannot be read (UnidentifiedImageError: cannot identify image file "
        f"{str(warned[0].message).split('image file ')[1].split(')')[0]}) and is skipped; 1 so far, 1 are allowed."
    )
    assert len(data.train) == 11
    assert data.train.y.tolist() == [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert data.train.x[:, 0, 0, 0].tolist() == list(range(1, 12))


@pytest.mark.filterwarnings("ignore::autowidth.AutoWidthWarning")  # of the images before the one too many
def test_too_many_corrupt_images(tmp_path):
    file = corrupt_archive(tmp_path / "x.npz", 4)
    assert len(open_data("npz", {"file": str(file), "corrupt": 4}).train) == 8
    message = said("npz", {"file": str(file), "corrupt": 0.25})
    assert "the train part of" in message
    assert ": 4 images cannot be read, and 3 are allowed. The last is image 3 (" in message
    assert (
        "the first were image 0, image 1, image 2. Take them out or copy the data again, or raise the limit" in message
    )


@pytest.mark.parametrize("limit", [-1, 1.5, "none", True])
def test_a_limit_that_makes_no_sense(tmp_path, limit):
    file = corrupt_archive(tmp_path / "x.npz", 0)
    expected = f"corrupt is {limit!r}; it is how many images may be unreadable: 20, or a share such as 0.01."
    assert said("npz", {"file": str(file), "corrupt": limit}) == expected


# ---- MNIST -----------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def write_mnist(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(RNG_SEED)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in arrays.items():
        if name.startswith("train"):
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return arrays


def test_mnist_from_its_own_files(tmp_path):
    arrays = write_mnist(tmp_path)
    data = open_data("mnist", {"folder": str(tmp_path)})
    assert np.array_equal(data.train.x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert np.array_equal(data.test.y.numpy(), arrays["t10k-labels-idx1-ubyte"])


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("train-images-idx3-ubyte.gz", b"no gzip", "cannot be unpacked"),
        ("train-images-idx3-ubyte.gz", gzip.compress(bytes(16), mtime=0), "is damaged or no idx file of 3 dimensions"),
        ("t10k-labels-idx1-ubyte", bytes([0, 0, 8, 1, 0, 0, 0, 9, 1]), "is damaged or no idx file of 1 dimensions"),
        ("t10k-labels-idx1-ubyte", idx(np.full(10, 11, np.uint8)), "has the label 11, and there are 10 classes"),
        ("t10k-labels-idx1-ubyte", None, "holds neither mnist.npz nor t10k-labels-idx1-ubyte (or t10k-labels-idx1-u"),
    ],
)
def test_damaged_mnist(tmp_path, name, content, text):
    write_mnist(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    assert text in said("mnist", {"folder": str(tmp_path)})


# ---- CIFAR -----------------------------------------------------------------------------------------------------------

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def cifar(count: int = 10) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(RNG_SEED)
    return {name: (rng.integers(0, 256, (count, 3072), np.uint8), np.arange(count) % 10) for name in BATCHES}


def write_binary(folder: Path) -> None:
    for name, (images, labels) in cifar().items():
        rows = np.concatenate([labels[:, None].astype(np.uint8), images], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"thing{number}" for number in range(10)) + "\n\n")


def write_pickles(folder: Path) -> None:
    for name, (images, labels) in cifar().items():
        (folder / name).write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2))
    names = {"label_names": [f"thing{number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


@pytest.mark.parametrize("form", ["binary", "python", "tar", "inner"])
def test_cifar10_from_its_own_files(tmp_path, form):
    source = tmp_path / ("cifar-10-batches-py" if form in ("tar", "inner") else "flat")
    source.mkdir()
    (write_binary if form == "binary" else write_pickles)(source)
    if form == "tar":
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as opened:
            opened.add(source, "cifar-10-batches-py")
        for file in source.iterdir():
            file.unlink()
    data = open_data("cifar10", {"folder": str(tmp_path if form in ("tar", "inner") else source)})
    written = cifar()
    expected = np.concatenate([written[name][0] for name in BATCHES[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(data.train.x.numpy(), expected)
    assert data.test.y.tolist() == list(range(10))
    assert data.classes[3] == "thing3"


def test_cifar100_reads_the_fine_labels(tmp_path):
    rng = np.random.default_rng(RNG_SEED)
    fine = np.arange(100, dtype=np.uint8)
    for name in ("train.bin", "test.bin"):
        images = rng.integers(0, 256, (100, 3072), np.uint8)
        rows = np.concatenate([(fine // 5)[:, None], fine[:, None], images], 1)
        (tmp_path / name).write_bytes(rows.tobytes())
    data = open_data("cifar100", {"folder": str(tmp_path)})
    assert data.train.y.tolist() == list(range(100))
    assert np.array_equal(data.test.x.numpy(), images.reshape(-1, 3, 32, 32))


class Evil:
    """A pickle that would run something."""

    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('ran').touch()",))


def test_a_pickle_that_would_run_code_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pickles(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": [1]}))
    message = said("cifar10", {"folder": str(tmp_path)})
    assert message == (
        "cifar10: data_batch_3 is no pickle of CIFAR: it asks for builtins.eval, which no data set needs. Nothing in "
        "it was run. Take the file from where CIFAR comes from, or use its binary version."
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("data_batch_2.bin", b"123", "data_batch_2.bin in {} has 3 bytes, no multiple of the 3,073 of a sample"),
        ("data_batch_2.bin", None, "{} lacks data_batch_2.bin: the data set is not whole. Copy it again."),
        ("test_batch.bin", bytes([10] * 3073), "sample 0 has the label 10, and there are 10 classes"),
        ("batches.meta.txt", b"cat dog", "the list of names: 2 classes, and 10 were expected."),
    ],
)
def test_damaged_cifar(tmp_path, name, content, text):
    write_binary(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    assert text.format(tmp_path) in said("cifar10", {"folder": str(tmp_path)})


def test_no_cifar_at_all(tmp_path):
    text = said("cifar10", {"folder": str(tmp_path)})
    assert text == (
        f"cifar10: {tmp_path} holds neither cifar10.npz nor data_batch_1.bin nor data_batch_1 nor "
        "cifar-10-binary.tar.gz nor cifar-10-python.tar.gz. Copy one of these there; nothing is downloaded."
    )


def test_a_damaged_tar(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"\x1f\x8bno")
    assert "cifar-10-binary.tar.gz cannot be unpacked" in said("cifar10", {"folder": str(tmp_path)})


# ---- .mat ------------------------------------------------------------------------------------------------------------


def cells(images: list[list[np.ndarray]]) -> dict:
    """gt.images as MATLAB writes it: a cell per class, in each a cell per image."""
    outer = np.empty((1, len(images)), object)
    for number, group in enumerate(images):
        inner = np.empty((1, len(group)), object)
        for place, image in enumerate(group):
            inner[0, place] = image
        outer[0, number] = inner
    return {"gt": {"images": outer}}


def plain(level: int) -> np.ndarray:
    return np.full((24, 24), level, np.uint8)


@pytest.fixture
def icdar_folder(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    train = [[plain(200)] * 3, *([plain(level), plain(level)] for level in range(36))]
    scipy_io.savemat(tmp_path / "case-insensitive-train.mat", cells(train))
    test = [[plain(level)] if level != 5 else [] for level in range(36)]
    scipy_io.savemat(tmp_path / "icdar2003-chars-test.mat", cells(test))
    return tmp_path


def test_icdar_leaves_the_background_out(icdar_folder):
    data = open_data("icdar", {"folder": str(icdar_folder), "size": 24})
    assert len(data.classes) == 36
    assert (len(data.train), len(data.test)) == (72, 35)
    assert torch.equal(data.train.x[:, 0, 0, 0], data.train.y.to(torch.uint8))
    assert torch.equal(data.test.x[:, 0, 0, 0], data.test.y.to(torch.uint8))


def test_icdar_with_background(icdar_folder):
    data = open_data("icdar", {"folder": str(icdar_folder), "background": True})
    assert data.classes[:2] == ("background", "0")
    assert data.shape == (1, 32, 32)
    assert len(data.train) == 75
    assert torch.equal(data.test.x[:, 0, 0, 0] + 1, data.test.y.to(torch.uint8))


def test_icdar_gray_up_to_one(icdar_folder):
    from scipy.io import savemat

    savemat(icdar_folder / "icdar2003-chars-test.mat", cells([[plain(255) / 255.0]] * 36))
    data = open_data("icdar", {"folder": str(icdar_folder), "size": 24})
    assert data.test.x.unique().tolist() == [255]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (cells([[plain(1)]] * 10), "has 10 classes; 36 (0-9, A-Z) or, with background first, 37 were expected."),
        (cells([[np.full((24, 24), -3.0)]] * 36), "of class '0' has values from -3 to -3; gray goes from 0 to 255"),
        ({"other": np.zeros(3)}, "is damaged or has no gt.images: KeyError: 'gt'"),
        (None, "is damaged or has no gt.images"),
    ],
)
def test_icdar_files_that_are_not_what_they_should_be(icdar_folder, content, text):
    from scipy.io import savemat

    file = icdar_folder / "icdar2003-chars-test.mat"
    savemat(file, content) if content is not None else file.write_bytes(b"x" * 300)
    assert text in said("icdar", {"folder": str(icdar_folder)})


def test_icdar_of_matlab_73(icdar_folder, monkeypatch):
    """As h5py shows such a file: cells are references, arrays are transposed."""

    class File(dict):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    image = np.arange(576, dtype=np.uint8).reshape(24, 24)
    contents = File({"image": image.T, "class": np.array(["image", "image"], object)})
    contents["gt"] = {"images": np.array([["class"]] * 36, object)}
    module = type("h5py", (), {"File": lambda *_: contents})
    monkeypatch.setitem(__import__("sys").modules, "h5py", module)
    file = icdar_folder / "case-insensitive-train.mat"
    file.write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    data = open_data("icdar", {"folder": str(icdar_folder), "size": 24})
    assert len(data.train) == 72
    assert np.array_equal(data.train.x[0, 0].numpy(), image)


# ---- tables ----------------------------------------------------------------------------------------------------------

HEADER = ["width", "height", "kind", "price", "part"]


def rows(count: int = 40) -> list[list]:
    rng = np.random.default_rng(RNG_SEED)
    return [
        [
            float(rng.normal(5, 2)),
            float(rng.normal(-1, 3)),
            ["ash", "oak"][n % 2],
            3.0 * n,
            "test" if n % 4 == 0 else "train",
        ]
        for n in range(count)
    ]


def write_csv(path: Path, lines: list[list] | None = None, header: list[str] = HEADER) -> str:
    path.write_text("\n".join(",".join(map(str, line)) for line in [header, *(rows() if lines is None else lines)]))
    return str(path)


def test_a_regression_from_csv(tmp_path):
    args = {"file": write_csv(tmp_path / "x.csv"), "target": "price", "features": ["width", "height"]}
    data = open_data("table", {**args, "split": "part"})
    assert (len(data.train), len(data.test)) == (30, 10)
    assert data.shape == (2,)
    assert data.classes == ()
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(data.train.x.std(0, correction=0), torch.ones(2))
    prices = data.test.y * data.target_deviation[0] + data.target_mean[0]
    torch.testing.assert_close(prices[:, 0], torch.arange(0, 120, 12).float(), rtol=1e-4, atol=1e-4)


def test_a_classification_from_csv(tmp_path):
    args = {"file": write_csv(tmp_path / "x.csv"), "target": "kind", "features": ["width", "height"]}
    data = open_data("table", {**args, "task": "classification", "test": 0.25, "seed": 1})
    assert data.classes == ("ash", "oak")
    assert (len(data.train), len(data.test)) == (30, 10)
    again = open_data("table", {**args, "task": "classification", "test": 0.25, "seed": 1})
    other = open_data("table", {**args, "task": "classification", "test": 0.25, "seed": 2})
    assert torch.equal(data.train.x, again.train.x)
    assert not torch.equal(data.train.x, other.train.x)


def test_parquet_holds_what_csv_holds(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: [row[place] for row in rows()] for place, name in enumerate(HEADER)}
    parquet.write_table(arrow.table(columns), tmp_path / "x.parquet")
    args = {"target": "price", "features": ["width", "height"]}
    one = open_data("table", {**args, "file": str(tmp_path / "x.parquet")})
    two = open_data("table", {**args, "file": write_csv(tmp_path / "x.csv")})
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.test.y, two.test.y)


def test_a_constant_column_stays_finite(tmp_path):
    lines = [[7.1, n] for n in range(20)]
    data = open_data("table", {"file": write_csv(tmp_path / "x.csv", lines, ["a", "b"]), "target": "b"})
    assert data.train.x.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"target": "prize"}, "table: {} has no column 'prize'. Did you mean 'price'?"),
        ({"target": "price", "features": ["widht"]}, "table: {} has no column 'widht'. Did you mean 'width'"),
        (
            {"target": "kind"},
            "table: {}, column 'part', row 1: 'test' is no finite number. Fill it, take the row out, or",
        ),
        ({"target": "kind", "features": ["width"]}, "table: {}, column 'kind', row 1: 'ash' is no finite number."),
        ({"target": "price", "split": "kind"}, "table: {}, column 'part', row 1: 'test' is no finite number."),
        (
            {"target": "price", "split": "kind", "features": ["width"]},
            "table: {}, column 'kind', row 1: 'ash' is neither 'train' nor 'test'.",
        ),
        ({"target": "price", "features": ["price"]}, "table: no features are left in {} beside 'price'."),
        ({"target": "price", "task": "ranking"}, "table: task is 'ranking'; it is 'classification' or 'regression'."),
        (
            {"target": "price", "features": ["width"], "test": 1},
            "table: test is 1; it must be a share above 0 and below 1",
        ),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, args, text):
    file = write_csv(tmp_path / "x.csv")
    assert said("table", {"file": file, **args}).startswith(text.format(file))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "table: {} has no rows."),
        ("a,b\n", "table: {} has no rows."),
        ("a,b\n1,2\n3\n", "table: {}, row 2: 1 values, and the header names 2 columns."),
        ("a,a\n1,2\n", "table: {} names the column 'a' twice. Its first line must be the header."),
        ("a,b\n1,\n2,3\n", "table: {}, column 'b', row 1: nothing is no finite number."),
        ("a,b\nnan,1\n2,3\n", "table: {}, column 'a', row 1: 'nan' is no finite number."),
        (b"\xff\xfe\x00", "table: {} cannot be read as CSV: 'utf-8' codec can't decode"),
    ],
)
def test_damaged_csv(tmp_path, content, text):
    file = tmp_path / "x.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said("table", {"file": str(file), "target": "b"}).startswith(text.format(file))


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing")
    message = said("table", {"file": str(tmp_path / "x.parquet"), "target": "b"})
    assert message.startswith(f"table: {tmp_path / 'x.parquet'} is damaged or no Parquet file: ")


def test_a_class_that_only_the_test_part_has(tmp_path):
    lines = [[n, "rare" if n == 3 else f"c{n % 2}", "test" if n == 3 else "train"] for n in range(10)]
    file = write_csv(tmp_path / "x.csv", lines, ["a", "kind", "part"])
    text = said("table", {"file": file, "target": "kind", "task": "classification", "split": "part"})
    assert text.startswith(f"table: the training part of {file}: no sample of 'rare'.")


def uci_file(folder: Path) -> None:
    rng = np.random.default_rng(RNG_SEED)
    masks = np.zeros((20, 30), np.uint8)
    for number in range(20):
        masks[number, rng.permutation(30)[:3]] = 1
    arrays = {"yacht__x": rng.normal(size=(30, 2)), "yacht__y": rng.normal(9, 2, 30)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    np.savez(folder / "uci_regression.npz", **arrays, yacht__testmask=np.packbits(masks, axis=1))


def test_uci_splits(tmp_path):
    uci_file(tmp_path)
    first, last = (open_data("uci", {"set": "yacht", "split": n, "folder": str(tmp_path)}) for n in (0, 19))
    assert (len(first.train), len(first.test)) == (27, 3)
    assert not torch.equal(first.test.x, last.test.x)
    assert first.name == "uci yacht"
    assert first.target_mean == pytest.approx((9,), abs=2)


def test_uci_mistakes(tmp_path):
    uci_file(tmp_path)
    args = {"folder": str(tmp_path)}
    assert said("uci", {**args, "set": "yatch"}).endswith("has no set 'yatch'. Did you mean 'yacht'?")
    assert (
        said("uci", {**args, "set": "yacht", "split": 20})
        == "uci: split is 20; it must be a whole number from 0 to 19."
    )


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_statistics_are_those_of_all_pixels():
    images = torch.randint(0, 256, (50, 3, 5, 4), dtype=torch.uint8)
    images[:, 2] = 51  # a constant channel
    mean, deviation = channel_statistics(images)
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert deviation[:2] == pytest.approx(pixels.std((0, 2, 3), correction=0)[:2].tolist())
    assert deviation[2] == 1
    assert feature_statistics(torch.tensor([[1.0, 5.0], [3.0, 5.0]])) == ((2.0, 5.0), (1.0, 1.0))


# ---- what the project's experiments use ------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [
        ("mnist", 60_000, 10_000, (1, 28, 28), 10),
        ("chars74k", 7_583, 3_249, (1, 32, 32), 36),
        ("letter", 16_000, 4_000, (16,), 26),
    ],
)
def test_the_experiments_data(data_folder, name, train, test, shape, classes):
    data = open_data(name, {"folder": str(data_folder)})
    assert (len(data.train), len(data.test), data.shape, len(data.classes)) == (train, test, shape, classes)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [("cifar10", 50_000, 10_000, (3, 32, 32), 10), ("tinyimagenet50", 25_000, 2_500, (3, 64, 64), 50)],
)
def test_the_experiments_photographs(data_folder, name, train, test, shape, classes):
    data = open_data(name, {"folder": str(data_folder)})
    assert (len(data.train), len(data.test), data.shape, len(data.classes)) == (train, test, shape, classes)


def test_arguments_may_come_from_json(tmp_path):
    args = json.loads(json.dumps({"file": str(archive(tmp_path / "x.npz")), "classes": 3}))
    assert len(open_data("npz", args).classes) == 3
