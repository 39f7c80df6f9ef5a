"""Labels and categories as codes, one at a time: no label raises, and none is looked into beyond its own code."""

from __future__ import annotations

import warnings

import numpy as np


def declared(labels, name: str) -> np.ndarray:
    """Sorted array of the public labels that a parameter declares.

    Raises
    ------
    ValueError
        Unless they are two or more different labels, all strings or all numbers.
    """
    array = np.asarray(np.asarray(labels).tolist())  # an object array of strings as strings
    comparable = array.ndim == 1 and array.dtype.kind in "USbiuf"
    if not comparable or len(array) < 2 or len(np.unique(array)) < len(array):
        raise ValueError(
            f"{name} must be a list of two or more different labels, all strings or all numbers, got {labels!r}."
        )
    return np.unique(array)


def as_labels(y):
    """Array of labels, item by item for what has no dtype of NumPy's: one label must not decide the dtype of all."""
    if hasattr(y, "columns") and hasattr(y, "to_series"):  # a frame of polars, which has the first of its columns
        y = y.to_series() if y.shape[1] == 1 else y
    if not isinstance(y, list | tuple) and isinstance(getattr(y, "dtype", np.dtype(object)), np.dtype):
        return y
    out = np.empty(len(y), object)
    for i, label in enumerate(y):
        out[i] = label
    return out


def kind_of(dtype) -> str:
    """NumPy's letter for what a dtype holds; pandas' and polars' strings are "U", and what is not known "O"."""
    if getattr(dtype, "type", None) is str or str(dtype).split("(")[0] in ("String", "Enum", "Categorical"):
        return "U"
    if hasattr(dtype, "is_numeric"):  # polars
        return "f" if dtype.is_numeric() else "b" if str(dtype) == "Boolean" else "M" if dtype.is_temporal() else "O"
    return getattr(dtype, "kind", "O")


def refuse_mixed(dtype, labels: np.ndarray, what: str, name: str) -> None:
    """Raise if the public dtypes of data and declared labels say that none can match."""
    kind = kind_of(dtype)
    if {kind, labels.dtype.kind} in ({text, number} for text in "US" for number in "biuf"):
        raise ValueError(
            f"{what} has dtype {dtype} and {name} {labels.dtype}: no label can be in {name}. Give both as "
            "strings or both as numbers. (Within scikit-learn's meta-estimators, such as cross_val_predict and "
            "StackingClassifier, labels may be replaced by 0, 1, ...: pass classes=[0, 1, ...] there.)"
        )


def codes(y, labels: np.ndarray) -> np.ndarray:
    """Position of each item of `y` in `labels`, -1 for anything else; never raises on an item."""
    if y.dtype.kind == "O":
        position = {label: k for k, label in enumerate(labels.tolist())}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what an item says when it is hashed or compared
            return np.array([_lookup(position, label) for label in y], np.int32)
    out = np.full(len(y), -1, np.int32)
    with np.errstate(all="ignore"):  # of a signalling NaN
        for k, label in enumerate(labels):
            out[y == label] = k
    return out


def _lookup(position, label):
    try:
        return position.get(label, -1)
    except Exception:  # not hashable, or worse: any error would tell that the record is there
        return -1
