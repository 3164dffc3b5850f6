"""Tables of numbers: CSV and Parquet files, the regression sets of UCI, and the letter recognition set.

    file ──> columns ──> features and target ──> training and test part ──> standardised by the training part

Features and targets are stored standardised: mean 0 and deviation 1 over the training part, so `mean` is 0 and
`deviation` 1. `target_mean` and `target_deviation` are those of the targets before that.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autowidth.data.checks import check_labels
from autowidth.data.dataset import Data, Split
from autowidth.data.given import extra, file_of, folder_of, nearest, share, whole, words
from autowidth.data.npz import archive
from autowidth.data.statistics import feature_statistics
from autowidth.errors import DataError

TableTask = Literal["classification", "regression"]
Columns = dict[str, list[Any]]

_TEST_WORDS = ("test", "1", "true", "1.0")
_TRAIN_WORDS = ("train", "training", "0", "false", "0.0")


def open_table(
    file: str,
    target: str,
    task: TableTask = "regression",
    features: Sequence[str] | None = None,
    test: float = 0.1,
    seed: int = 0,
    split: str | None = None,
) -> Data:
    """Numbers of a CSV file with a header, or of a Parquet file, to predict one column from others.

    `target`: the column to predict. `features`: the columns to predict it from, all others unless they are given.
    `test`: share of the rows that are set apart, drawn from `seed`; or `split`: a column that says train or test (or 0
    or 1).
    """
    if task not in ("classification", "regression"):
        raise DataError(f"table: task is {task!r}; it is 'classification' or 'regression'.")
    path = file_of("table", file)
    columns = _read(path)
    special = [target] if split is None else [target, split]
    wanted = words("table: features", features) if features is not None else [c for c in columns if c not in special]
    for name in [*special, *wanted]:
        if name not in columns:
            raise DataError(f"table: {path} has no column {name!r}.{nearest(str(name), columns)}")
    if not wanted or set(wanted) & set(special):
        raise DataError(f"table: no features are left in {path} beside {' and '.join(map(repr, special))}.")
    x = torch.stack([_numeric(path, name, columns[name]) for name in wanted], 1)
    tested = _split(path, split, columns, share("table: test", test), whole("table: seed", seed, 0), len(x))
    if task == "regression":
        return regression("table", x, _numeric(path, target, columns[target])[:, None], tested)
    labels, classes = _labelled(path, target, columns[target])
    return _classification("table", f"table: the training part of {path}", x, labels, classes, tested)


def open_uci(set: str, split: int = 0, folder: str | None = None) -> Data:
    """A regression set of `uci_regression.npz` with one of its 20 standard splits."""
    path = folder_of("uci", folder) / "uci_regression.npz"
    with archive("uci", file_of("uci", path)) as opened:
        known = sorted(name.removesuffix("__x") for name in opened if name.endswith("__x"))
        if set not in known:
            raise DataError(f"uci: {path} has no set {set!r}.{nearest(str(set), known)}")
        x, y, masks = (opened[f"{set}__{part}"] for part in ("x", "y", "testmask"))
    whole("uci: split", split, 0, len(masks) - 1)
    tested = np.unpackbits(masks, axis=1)[split, : len(x)].astype(bool)
    return regression(f"uci {set}", torch.from_numpy(x), torch.from_numpy(y)[:, None], torch.from_numpy(tested))


def open_letter(folder: str | None = None) -> Data:
    """UCI letter recognition: 16 features, 26 classes, from `letter.npz`."""
    path = folder_of("letter", folder) / "letter.npz"
    with archive("letter", file_of("letter", path)) as opened:
        x, y, tested = (torch.from_numpy(opened[part].copy()) for part in ("x", "y", "test"))
    classes = tuple(chr(ord("A") + number) for number in range(26))
    return _classification("letter", f"letter: the training part of {path}", x, y.numpy(), classes, tested)


def regression(name: str, x: Tensor, y: Tensor, tested: Tensor) -> Data:
    """Features [rows, features] and targets [rows, targets], split by a mask and standardised."""
    _both_parts(name, tested)
    mean, deviation = feature_statistics(y[~tested])
    targets = ((y.double() - torch.tensor(mean)) / torch.tensor(deviation)).float()
    features = _standardised(x, tested)
    count = x.shape[1]
    train, test = (Split(features[rows], targets[rows]) for rows in (~tested, tested))
    return Data(
        name,
        train,
        test,
        (count,),
        (),
        (0.0,) * count,
        (1.0,) * count,
        {},
        target_mean=mean,
        target_deviation=deviation,
    )


def _classification(
    name: str, where: str, x: Tensor, labels: NDArray[Any], classes: tuple[str, ...], tested: Tensor
) -> Data:
    _both_parts(name, tested)
    y = check_labels(name, labels, classes, full=False)
    check_labels(where, y[~tested].numpy(), classes, full=True)
    features, count = _standardised(x, tested), x.shape[1]
    train, test = (Split(features[rows], y[rows]) for rows in (~tested, tested))
    return Data(name, train, test, (count,), classes, (0.0,) * count, (1.0,) * count)


def _standardised(x: Tensor, tested: Tensor) -> Tensor:
    mean, deviation = feature_statistics(x[~tested])
    return ((x.double() - torch.tensor(mean)) / torch.tensor(deviation)).float()


def _both_parts(name: str, tested: Tensor) -> None:
    if not tested.any() or tested.all():
        part = "training" if tested.all() else "test"
        raise DataError(
            f"{name}: the {part} part is empty; of {len(tested):,} rows {int(tested.sum()):,} are for the test."
        )


# ---- files -----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Columns:
    columns = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    if not columns or not next(iter(columns.values())):
        raise DataError(f"table: {path} has no rows.")
    return columns


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            rows = [row for row in csv.reader(opened, strict=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"table: {path} cannot be read as CSV: {error}. It must be text with commas, in UTF-8."
        ) from error
    if not rows:
        return {}
    names = [name.strip() for name in rows[0]]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(f"table: {path} names the column {twice[0]!r} twice. Its first line must be the header.")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(names):
            raise DataError(
                f"table: {path}, row {number}: {len(row)} values, and the header names {len(names)} columns."
            )
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> Columns:
    arrow, parquet = extra("pyarrow", "data", "reading Parquet"), extra("pyarrow.parquet", "data", "reading Parquet")
    try:
        found: Columns = parquet.read_table(path).to_pydict()
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"table: {path} is damaged or no Parquet file: {error}. Copy or write it again.") from error
    return found


def _numeric(path: Path, name: str, values: Sequence[Any]) -> Tensor:
    """A column as numbers; what is none is named with its row."""
    numbers = np.empty(len(values), np.float64)
    for row, value in enumerate(values):
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            numbers[row] = math.nan
        if not math.isfinite(numbers[row]):
            said = "nothing" if value in (None, "") else repr(value)
            raise DataError(
                f"table: {path}, column {name!r}, row {row + 1}: {said} is no finite number. Fill it, take the row "
                "out, or leave the column out with 'features'."
            )
    return torch.from_numpy(numbers)


def _labelled(path: Path, name: str, values: Sequence[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A column as class numbers, and the names of the classes: numbers in their order, words in theirs."""
    missing = [row for row, value in enumerate(values, 1) if value is None or str(value) == ""]
    if missing:
        raise DataError(f"table: {path}, column {name!r}, row {missing[0]}: the class is missing.")
    texts = [str(value) for value in values]
    try:
        names = sorted(set(texts), key=float)
    except ValueError:
        names = sorted(set(texts))
    if len(names) < 2:
        raise DataError(f"table: {path}, column {name!r} holds one class only, {names[0]!r}.")
    numbers = {text: number for number, text in enumerate(names)}
    return np.array([numbers[text] for text in texts], np.int64), tuple(names)


def _split(path: Path, split: str | None, columns: Columns, test: float, seed: int, count: int) -> Tensor:
    """Which rows are for the test."""
    if split is None:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        tested = torch.zeros(count, dtype=torch.bool)
        tested[order[: max(1, round(test * count))]] = True
        return tested
    texts = [str(value).strip().lower() for value in columns[split]]
    for row, text in enumerate(texts, 1):
        if text not in _TEST_WORDS + _TRAIN_WORDS:
            raise DataError(f"table: {path}, column {split!r}, row {row}: {text!r} is neither 'train' nor 'test'.")
    return torch.tensor([text in _TEST_WORDS for text in texts])
