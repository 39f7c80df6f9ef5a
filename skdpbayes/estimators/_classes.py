"""The set of labels of a classifier: declared, or taken from the labels, which is not private."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from skdpbayes._labels import declared, refuse_mixed
from skdpbayes.privacy import PrivacyLeakWarning


def classes_of(classes, given, y):
    """Sorted labels, and reasons that void the guarantee.

    Parameters
    ----------
    classes : array-like or None
        What the user declares.
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
        classes = declared(classes, "classes")
        refuse_mixed(getattr(given, "dtype", y.dtype), classes, "y", "classes")
        return classes, ()
    warnings.warn(
        "classes=None takes the set of labels from y, which is not private. Pass classes=[...].",
        PrivacyLeakWarning,
        stacklevel=4,
    )
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"Classifier can't train when only one class is present in y: {classes[0]!r}.")
    return classes, ("the set of classes was taken from y (classes=None)",)
