"""A look at data before a fit, which is not private."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from skdpbayes.declarations import column_bounds, labels_of, of_columns_and_response, schema_of
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.labels import as_labels, codes, is_sequence
from skdpbayes.intake.rows import dense
from skdpbayes.schema import as_category


@dataclass(frozen=True)
class DataReport:
    """What `check_data` found.

    It tells of single rows: do not publish it.

    Attributes
    ----------
    findings : tuple of str
        Empty if there is nothing to say.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.preprocessing import check_data
    >>> X, y = np.linspace(-1, 1, 2000)[:, None], np.arange(2000) % 2
    >>> model = DPBayesianLogisticRegression(classes=[0, 1], data_norm=1.0)
    >>> check_data(X, y, estimator=model).findings
    ()
    >>> X[0], y[1] = np.nan, 7
    >>> len(check_data(X, y, estimator=model).findings)
    2
    """

    findings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"- {finding}" for finding in self.findings] or ["- nothing found"]
        return "\n".join(["Not private, for your eyes only:", *lines])


def check_data(X: Any, y: Any = None, *, estimator: Any = None) -> DataReport:
    """Say what is wrong with data, as private estimators never do.

    **This is not private**: what it says depends on single rows. A private `fit` cannot raise on a
    missing value or an unknown label, since the error would tell that the row is there; it leaves
    the row out. This function counts what would be left out, shortened or cut. Use it where you may
    look at the data, and publish nothing of it.

    Parameters
    ----------
    X : array-like, data frame or sparse matrix of shape (n_samples, n_features)
    y : array-like of shape (n_samples,), optional
    estimator : estimator of this package, optional
        Its ``classes``, ``data_norm``, ``bounds`` (or the `Schema` that is one of them) and
        ``delta`` are held against the data.

    Returns
    -------
    DataReport
        ``print`` shows it.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> from skdpbayes.preprocessing import check_data
    >>> model = DPBayesianLogisticRegression(classes=["no", "yes"], data_norm=5.0)
    >>> print(check_data([[3.0, 4.0], [np.nan, 1.0], [6.0, 8.0]], ["no", "yes", "Yes"], estimator=model))
    Not private, for your eyes only:
    - 1 of 3 rows have a missing or infinite value, or one that is not a number, and will be left out
    - 1 of 3 rows are longer than data_norm=5 and will be shortened (the longest is 10)
    - 1 of 3 labels are not among classes, and their rows will be left out, such as 'Yes'
    - epsilon=1 with 3 rows and 2 columns: the result will be mostly noise
    """
    if hasattr(estimator, "steps"):
        raise ValueError(
            "Check what the model is given: check_data(pipeline[:-1].transform(X), y, estimator=pipeline[-1])."
        )
    parameters = {} if estimator is None else estimator.get_params(deep=False)
    parameters["names"] = list(getattr(X, "columns", ()))
    if isinstance(estimator, RegressorMixin) and parameters.get("bounds") is not None:
        parameters["bounds"], parameters["y_bounds"] = of_columns_and_response(parameters["bounds"])
    schema = next((own for own in map(schema_of, parameters.values()) if own is not None), None)
    width = None
    if is_sequence(X):  # of most rows, which a private fit must not ask
        width = Counter(
            len(row) for row in X if isinstance(row, list | tuple | np.ndarray)
        ).most_common(1)[0][0]
    rows = dense(numbers(X, schema, width)).astype(float)
    return DataReport(
        tuple(
            finding
            for check in (_cells, _norms, _bounds, _columns, _labels, _budget)
            for finding in check(rows, y, parameters)
        )
    )


def _cells(X, y, parameters):
    del y
    bad = ~np.isfinite(X).all(axis=1)
    if bad.any():
        yield (
            f"{bad.sum()} of {len(X)} rows have a missing or infinite value, or one that is not a number, and will be "
            "left out"
        )
    for j in np.flatnonzero(~np.isfinite(X).any(axis=0)):
        yield f"column {_name(j, parameters)} holds no number at all: every row will be left out"


def _name(j, parameters):
    return repr(parameters["names"][j]) if parameters["names"] else str(j)


def _norms(X, y, parameters):
    del y
    norm = parameters.get("data_norm")
    if norm is None:
        return
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(X, axis=1)
    long = np.isfinite(lengths) & (lengths > norm * (1 + 1e-9))
    if long.any():
        yield (
            f"{long.sum()} of {len(X)} rows are longer than data_norm={norm:g} and will be shortened (the longest is "
            f"{lengths[long].max():.3g})"
        )
    elif np.isfinite(lengths).any() and lengths[np.isfinite(lengths)].max() < norm / 2:
        most = lengths[np.isfinite(lengths)].max()
        yield f"no row is longer than {most:.3g}: a smaller data_norm than {norm:g} would mean less noise"


def _bounds(X, y, parameters):
    bounds, of_response = parameters.get("bounds"), parameters.get("y_bounds")
    if bounds is None:
        return
    low, high = column_bounds(bounds, X.shape[1], parameters["names"] or None)
    yield from _outside("X", X, low, high)
    if y is not None and of_response is not None:
        yield from _outside("y", np.asarray(y, float), *of_response)


def _outside(name, values, low, high):
    outside = (values < low) | (values > high)
    if outside.any():
        yield f"{outside.sum()} of {values.size} values of {name} lie outside of bounds and will be cut there"


def _columns(X, y, parameters):
    del y
    with np.errstate(all="ignore"):
        known = np.isfinite(X)
        low, high = (np.where(known, X, fill) for fill in (np.inf, -np.inf))
        constant = np.flatnonzero(low.min(axis=0) == high.max(axis=0)).tolist()
    if constant and len(X) > 1:
        yield f"columns {', '.join(_name(j, parameters) for j in constant)} are constant"


def _labels(X, y, parameters):
    classes = parameters.get("classes")
    if y is None or classes is None:
        return
    labels = list(y)
    if classes is not (public := labels_of(classes, "classes")):
        classes, labels = public, [as_category(label, public[0]) for label in labels]
    labels = as_labels(labels)
    unknown = codes(labels, np.unique(np.asarray(classes))) < 0
    if unknown.any():
        often = Counter(map(repr, labels[unknown])).most_common(5)
        yield (
            f"{unknown.sum()} of {len(labels)} labels are not among classes, and their rows will be left out, such as "
            f"{', '.join(label for label, _ in often)}"
        )
    for label in classes:
        if not any(own == label for own in labels[~unknown]):
            yield f"no row has the label {label!r}"


def _budget(X, y, parameters):
    del y
    delta, epsilon = parameters.get("delta"), parameters.get("epsilon")
    if delta is None:
        return
    if delta >= 1 / len(X):
        yield f"delta={delta:g} is not below one over the number of rows, {len(X)}: it allows to publish some row"
    if epsilon * len(X) < 20 * X.shape[1]:
        yield f"epsilon={epsilon:g} with {len(X)} rows and {X.shape[1]} columns: the result will be mostly noise"
