"""Labels and categories as codes, one at a time: no label raises, and none is looked into beyond its own code.

A cell may be an object of any class, and its methods may raise anything, `KeyboardInterrupt`
included. So none of them is called: `plain` lets pass the classes of Python and NumPy that hold one
value, and everything else is no value.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from skdpbayes.cells import NO_VALUE, objects, parsed, plain
from skdpbayes.declarations import declared_labels, labels_of
from skdpbayes.privacy.report import PrivacyLeakWarning

_FIRST_DAY, _LAST_DAY = (
    (day - datetime.date(1970, 1, 1)).days for day in (datetime.date.min, datetime.date.max)
)


def as_labels(y):
    """Array of labels, item by item for what has no dtype of NumPy's: one label must not decide the dtype of all."""
    if hasattr(y, "columns") and hasattr(
        y, "to_series"
    ):  # a frame of polars, which has the first of its columns
        y = y.to_series() if y.shape[1] == 1 else y
    elif hasattr(y, "columns") and y.shape[1] == 1 and not isinstance(y.dtypes.iloc[0], np.dtype):
        y = y.iloc[:, 0]
    dtype = None if is_sequence(y) else getattr(y, "dtype", np.dtype(object))
    if isinstance(
        dtype, np.dtype
    ):  # scikit-learn raises on complex ones, which pandas makes of one item
        return np.asarray(y, object) if dtype.kind == "c" else y
    return objects(items(y))


def column_labels(column):
    """Labels of a column of a data frame, cell by cell unless its dtype is NumPy's.

    In other dtypes one missing value would decide the dtype of all.
    """
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else objects(items(column))


def items(column) -> list:
    """Items of a column or Series, each by itself; what its library cannot hand out is no value.

    Some dates are none of Python's: pandas raises on those, and polars panics.
    """
    dtype: Any = getattr(column, "dtype", None)
    if hasattr(dtype, "is_temporal"):  # polars
        if str(dtype) == "Date":
            days = column.to_physical().fill_null(0).to_numpy()
            fine = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
            found = iter(column.gather(np.flatnonzero(fine)).to_list())
            return [next(found) if own else NO_VALUE for own in fine]
        if dtype.is_temporal() or dtype.is_nested():  # of classes that are not looked at
            return [NO_VALUE] * len(column)
    try:
        return list(column)
    except Exception:  # one item cannot be handed out: the others are, one by one
        return [_item(column, i) for i in range(len(column))]


def _item(column, i):
    try:
        return column.iloc[i] if hasattr(column, "iloc") else column[i]
    except Exception:  # an error would tell of this one record
        return NO_VALUE


def is_sequence(X) -> bool:
    """Whether a container holds its items one by one, as lists do, and arrays and data frames do not."""
    if isinstance(X, list | tuple):
        return True
    array = isinstance(X, str | bytes | bytearray | memoryview | np.generic) or any(
        hasattr(X, name)
        for name in ("__array__", "__array_interface__", "dtype", "typecode", "shape", "keys")
    )
    return isinstance(X, Iterable) and not array


def kind_of(dtype) -> str:
    """NumPy's letter for what a dtype holds; pandas' and polars' strings are "U", and what is not known "O"."""
    if getattr(dtype, "type", None) is str or str(dtype).split("(")[0] in (
        "String",
        "Enum",
        "Categorical",
    ):
        return "U"
    if hasattr(dtype, "is_numeric"):  # polars
        return (
            "f"
            if dtype.is_numeric()
            else "b"
            if str(dtype) == "Boolean"
            else "M"
            if dtype.is_temporal()
            else "O"
        )
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
        return position.get(plain(label), -1)
    except (
        Exception
    ):  # not hashable, as a signalling NaN: any error would tell that the record is there
        return -1


def classes_of(classes, given, y):
    """The labels of the rows, the sorted set of labels, and reasons that void the guarantee.

    Parameters
    ----------
    classes : array-like, Schema, Outcome or None
        What the user declares. Under a schema with labels that are numbers, text is read as
        numbers.
    given : array-like
        The labels as the user gave them.
    y : array
        The labels as an array.

    Raises
    ------
    ValueError
        For declared labels that make no sense; without any, also for what `y` holds.
    """
    if classes is not None:
        public = labels_of(classes, "classes")
        found, dtype = declared_labels(public, "classes"), getattr(given, "dtype", y.dtype)
        if public is not classes and found.dtype.kind not in "US" and kind_of(dtype) in "USO":
            return parsed(y), found, ()
        refuse_mixed(dtype, found, "y", "classes")
        return y, found, ()
    warnings.warn(
        "classes=None takes the set of labels from y, which is not private. Pass classes=[...].",
        PrivacyLeakWarning,
        stacklevel=4,
    )
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(
            f"Classifier can't train when only one class is present in y: {classes[0]!r}."
        )
    return y, classes, ("the set of classes was taken from y (classes=None)",)
