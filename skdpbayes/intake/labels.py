"""Labels and categories as codes, one at a time: no label raises or is looked into.

A cell may be an object of any class, and its methods may raise anything, `KeyboardInterrupt`
included. So none of them is called: `plain` lets pass the classes of Python and NumPy that hold one
value, and everything else is no value.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from skdpbayes.cells import objects, parsed, plain
from skdpbayes.checks import warn_user
from skdpbayes.declarations import Declared
from skdpbayes.intake.sources import converted
from skdpbayes.intake.tables import dtype_of, frame_of, is_sequence, items, kind_of
from skdpbayes.privacy.report import PrivacyLeakWarning

_REPLACED = (
    " (Within scikit-learn's meta-estimators, such as cross_val_predict and StackingClassifier, "
    "labels may be replaced by 0, 1, ...: pass classes=[0, 1, ...] there.)"
)


def as_labels(y: Any) -> Any:
    """Array of labels, item by item unless it has a dtype of NumPy's.

    One label must not decide the dtype of all. A frame of several columns, or of one with a dtype
    of NumPy's, is left to scikit-learn, which judges its shape.
    """
    frame = frame_of(y)
    if frame is not None:
        if frame.n_columns != 1 or isinstance(frame.dtypes[0], np.dtype):
            return y
        y = frame.series(0)
    dtype = dtype_of(y)
    if isinstance(dtype, np.dtype):
        # scikit-learn raises on complex labels, and one label makes all of them complex in pandas.
        return np.asarray(y, object) if dtype.kind == "c" else y
    return objects(items(y)) if dtype is not None or is_sequence(y) else y


def refuse_mixed(dtype: Any, labels: np.ndarray, what: str, name: str) -> None:
    """Raise if the public dtypes of data and declared labels say that none can match."""
    kind = kind_of(dtype)
    if {kind, labels.dtype.kind} in ({text, number} for text in "US" for number in "biuf"):
        raise ValueError(
            f"{what} has dtype {dtype} and {name} {labels.dtype}: no label can be in {name}. Give "
            "both as strings or both as numbers." + (_REPLACED if name == "classes" else "")
        )


def codes(y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Position of each item of `y` in `labels`, -1 for anything else; never raises on an item."""
    if y.dtype.kind == "O":
        position = {label: k for k, label in enumerate(labels.tolist())}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an item that is hashed or compared
            return np.array([_lookup(position, label) for label in y], np.int32)
    out = np.full(len(y), -1, np.int32)
    with np.errstate(all="ignore"):  # of a signalling NaN
        for k, label in enumerate(labels):
            out[y == label] = k
    return out


def _lookup(position: Mapping[object, int], label: object) -> int:
    try:
        return position.get(plain(label), -1)
    except Exception:  # not hashable, as a signalling NaN; an error would tell of the record
        return -1


def codes_of_labels(classes: Any, y: Any, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels as a fit with the parameter `classes` reads them, and their positions in `labels`."""
    own = np.ravel(np.asarray(as_labels(y)))
    if classes is not None:
        own, _, _ = classes_of(Declared.of_classes(classes), y, own)
    return own, codes(own, labels)


def classes_of(declared: Declared, given: Any, y: Any) -> tuple[Any, np.ndarray, tuple[str, ...]]:
    """The labels of the rows, the sorted set of labels, and reasons that void the guarantee.

    Parameters
    ----------
    declared : Declared
        The parameter `classes`. Under a schema with labels that are numbers, text is read as
        numbers.
    given : array-like
        The labels as the user gave them.
    y : array or RecordSource
        The labels, read as `response` does.

    Raises
    ------
    ValueError
        For declared labels that make no sense; without any, also for the content of `y`.
    """
    if declared.labels is not None:
        found = declared.classes()
        own = dtype_of(given)
        dtype = y.dtype if own is None else own
        of_numbers = declared.outcome is not None and found.dtype.kind not in "US"
        if of_numbers and kind_of(dtype) in "USO":
            return converted(y, parsed), found, ()
        refuse_mixed(dtype, found, "y", "classes")
        return y, found, ()
    warn_user(
        "classes=None takes the set of labels from y, which is not private. Pass classes=[...].",
        PrivacyLeakWarning,
    )
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(
            f"Classifier can't train when only one class is present in y: {classes[0]!r}."
        )
    return y, classes, ("the set of classes was taken from y (classes=None)",)
