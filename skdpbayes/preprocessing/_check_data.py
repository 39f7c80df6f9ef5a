"""Faults of data before a fit; not private."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from skdpbayes.cells import as_category, objects
from skdpbayes.declarations import Declared, schema_of
from skdpbayes.intake.classified import norm_of
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.groups import place_of
from skdpbayes.intake.labels import as_labels, codes
from skdpbayes.intake.persons import codes_of_persons
from skdpbayes.intake.rows import dense
from skdpbayes.intake.tables import as_table, frame_of, is_sequence
from skdpbayes.preprocessing._public import CategoryEncoder, RawRows

Parameters: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Iterable[object] | None

_MISSING_AS_TEXT = {"nan", "None", "NaT", "<NA>"}


@runtime_checkable
class HasModelOfRecords(Protocol):
    """Estimator whose model says which records it can have."""

    def _finite_and_possible(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the records without NaN or infinity, and of those that are possible."""


@dataclass(frozen=True)
class DataReport:
    """Findings of `check_data`.

    They reveal single rows: do not publish them.

    Attributes
    ----------
    findings : tuple of str
        Empty if there is no fault.

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


def check_data(
    X: Any,
    y: Labels = None,
    *,
    estimator: BaseEstimator | None = None,
    groups: Any = None,
) -> DataReport:
    """Find faults in data that private estimators never report.

    **This is not private**: its findings depend on single rows. A private `fit` must not raise an
    error on a missing value or an unknown label, since the error would reveal the row; it leaves
    the row out. This function counts the rows and values that would be left out, count for
    less or be clipped. Use it where you may look at the data, and publish nothing of it.

    Parameters
    ----------
    X : array-like, data frame or sparse matrix of shape (n_samples, n_features)
        Or what the fit of a `DPNumPyroModel` takes.
    y : array-like of shape (n_samples,), optional
    estimator : estimator of this package, optional
        The data are compared with its ``classes``, ``data_norm``, ``bounds`` (or a `Schema` in
        their place), ``max_rows_per_person`` and ``delta``; with the ``categories`` of a
        `CategoryEncoder`; and with what a `DPNumPyroModel` can have. Of a `ColumnTransformer`, such
        as `make_preprocessor` returns, each step is held against its own columns.
    groups : array-like of shape (n_samples,), optional
        Name of the person of each row, as `fit` takes it.

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
    >>> X, y = [[3.0, 4.0], [np.nan, 1.0], [6.0, 8.0]], ["no", "yes", "Yes"]
    >>> print(check_data(X, y, estimator=model))
    Not private, for your eyes only:
    - 1 of 3 rows have a missing, infinite or non-numeric value, and will be left out
    - 1 of 3 rows are longer than data_norm=5 and will count for less (the longest is 10)
    - 1 of 3 labels are not among classes, and their rows will be left out, such as 'Yes'
    - epsilon=1 with 3 rows and 2 columns: the result will be mostly noise
    """
    if isinstance(estimator, Pipeline):
        raise ValueError(
            "Check what the model is given: "
            "check_data(pipeline[:-1].transform(X), y, estimator=pipeline[-1])."
        )
    by_name = isinstance(X, dict)  # the arguments of a NumPyro model
    rows = next(iter(X.values())) if by_name else X
    person = None if groups is None else codes_of_persons(groups, _num_samples(rows))
    parameters = {} if estimator is None else estimator.get_params(deep=False)
    if isinstance(estimator, CategoryEncoder):
        found = list(_categories(X, clone(estimator).fit(X)))
    elif isinstance(estimator, ColumnTransformer):
        found = list(_of_steps(X, estimator))
    else:
        n_persons = None if person is None else int(person.max()) + 1
        regression, found = isinstance(estimator, RegressorMixin), []
        has_model = isinstance(estimator, HasModelOfRecords)
        if isinstance(estimator, HasModelOfRecords):
            finite, possible = estimator._finite_and_possible(X, y)
            found += [*_missing(~finite), *_impossible(finite & ~possible)]
        if "group_column" in parameters:
            found += _groups(X, y, estimator, n_persons)
        elif not has_model or (not by_name and np.ndim(X) == 2):
            parameters["counted"] = has_model
            found += _numbers(X, y, dict(parameters), regression, n_persons)
    if person is not None:
        found += _persons(person, as_labels(groups), parameters.get("max_rows_per_person"))
    return DataReport(tuple(found))


def _of_steps(X: Any, estimator: ColumnTransformer) -> Iterator[str]:
    """Faults of the columns that each step is given; none is fitted, as some would spend budget."""
    rows = np.asarray(X, object) if isinstance(X, list) else X
    for _, step, columns in estimator.transformers:
        first = step.steps[0][1] if isinstance(step, Pipeline) else step
        own = columns(rows) if callable(columns) else columns
        if isinstance(first, BaseEstimator) and np.size(own):
            # One name alone stands for a column of texts, which is not a table.
            part = _safe_indexing(rows, [own] if np.ndim(own) == 0 else own, axis=1)
            yield from check_data(part, estimator=first).findings


def _groups(X: RawRows, y: Labels, estimator: Any, n_persons: int | None) -> Iterator[str]:
    """Faults of rows of which one column names a group."""
    frame = frame_of(X)
    rows, group = estimator._reader().rows_and_groups(clone(estimator), X, reset=True)
    names = list(range(rows.shape[1] + 1) if frame is None else frame.names)
    place = place_of(estimator.group_column, names)
    if (group < 0).any():
        often = ", ".join(_most_frequent(objects(as_table(X).cells(place))[group < 0]))
        yield (
            f"{(group < 0).sum()} of {len(group)} rows are of none of groups, and will be left "
            f"out, such as {often}"
        )
    others = [] if frame is None else names[:place] + names[place + 1 :]
    parameters = estimator.get_params(deep=False) | {"counted": False, "names": others}
    yield from _findings(rows.astype(float), y, parameters, n_persons)


def _findings(
    rows: np.ndarray, y: Labels, parameters: dict[str, Any], n_persons: int | None
) -> Iterator[str]:
    """Faults of rows, labels and parameters."""
    parameters["n_records"] = len(rows) if n_persons is None else n_persons
    for check in (_cells, _norms, _bounds, _columns, _labels, _budget):
        yield from check(rows, y, parameters)


def _numbers(
    X: RawRows, y: Labels, parameters: dict[str, Any], regression: bool, n_persons: int | None
) -> Iterator[str]:
    """Faults of rows that are read as numbers."""
    frame = frame_of(X)
    parameters["names"] = [] if frame is None else list(frame.names)
    bounds = parameters.get("bounds")
    if bounds is not None:
        parameters["bounds"] = (
            Declared.of_regression(bounds) if regression else Declared.of_columns(bounds)
        )
    declared = parameters.get("bounds")
    schemas = [
        declared.schema if isinstance(declared, Declared) else None,
        *map(schema_of, parameters.values()),
    ]
    schema = next((own for own in schemas if own is not None), None)
    width = None
    if isinstance(X, Sequence) and is_sequence(X):
        # The most frequent one, which a private fit must not look at.
        lengths = (len(row) for row in X if isinstance(row, list | tuple | np.ndarray))
        width = Counter(lengths).most_common(1)[0][0]
    yield from _findings(dense(numbers(X, schema, width)).astype(float), y, parameters, n_persons)


def _categories(X: RawRows, encoder: CategoryEncoder) -> Iterator[str]:
    """Faults of cells that are read as categories."""
    lists = encoder._lists()
    names = encoder._names()
    table = as_table(X, len(lists))
    columns = zip(encoder._cells(X, reset=False), lists, encoder._dropped(lists), strict=True)
    for j, (cells, own, dropped) in enumerate(columns):
        name = repr(j if names is None else names[j])
        code = codes(cells, own)
        if (code < 0).any():
            given = objects(table.cells(j))  # a schema reads a cell that it does not know as None
            often = ", ".join(_most_frequent(given[code < 0]))
            instead = "their rows will be left out" if dropped >= 0 else "will be zeros"
            yield (
                f"{(code < 0).sum()} of {len(cells)} cells of column {name} are not among "
                f"categories, and {instead}, such as {often}"
            )
        for k in np.flatnonzero(~np.isin(np.arange(len(own)), code)):
            yield f"no cell of column {name} has the category {own[k]!r}"


def _most_frequent(cells: np.ndarray) -> list[str]:
    return [cell for cell, _ in Counter(map(repr, cells)).most_common(5)]


def _cells(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    del y
    replaced = parameters.get("missing") is not None
    if not parameters["counted"] and not replaced:
        yield from _missing(~np.isfinite(X).all(axis=1))
    instead = "missing takes the place of every cell" if replaced else "every row will be left out"
    for j in np.flatnonzero(~np.isfinite(X).any(axis=0)):
        yield f"column {_name(j, parameters)} holds no number at all: {instead}"


def _missing(rows: np.ndarray) -> Iterator[str]:
    if rows.any():
        yield (
            f"{rows.sum()} of {len(rows)} rows have a missing, infinite or non-numeric value, and "
            "will be left out"
        )


def _impossible(records: np.ndarray) -> Iterator[str]:
    if records.any():
        yield (
            f"{records.sum()} of {len(records)} records have no density under the model, and will "
            "be left out: a value that its distribution cannot have (levels are counted from 0), "
            "or one too far from its prior"
        )


def _name(j: np.integer | int, parameters: Parameters) -> str:
    return repr(parameters["names"][j]) if parameters["names"] else str(j)


def _norms(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    del y
    if "data_norm" not in parameters:
        return
    norm = norm_of(parameters["data_norm"], X.shape[1])
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(X, axis=1)
    long = np.isfinite(lengths) & (lengths > norm * (1 + 1e-9))
    if long.any():
        yield (
            f"{long.sum()} of {len(X)} rows are longer than data_norm={norm:g} and will "
            f"count for less (the longest is {lengths[long].max():.3g})"
        )
    elif np.isfinite(lengths).any() and lengths[np.isfinite(lengths)].max() < norm / 2:
        most = lengths[np.isfinite(lengths)].max()
        yield (
            f"no row is longer than {most:.3g}: a smaller data_norm than {norm:g} would mean less "
            "noise"
        )


def _bounds(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    declared = parameters.get("bounds")
    if not isinstance(declared, Declared):
        return
    yield from _outside("X", X, *declared.bounds(X.shape[1], parameters["names"] or None))
    if y is not None and declared.response is not None:
        yield from _outside("y", np.asarray(y, float), *declared.response)


def _outside(name: str, values: np.ndarray, low: ArrayLike, high: ArrayLike) -> Iterator[str]:
    outside = (values < low) | (values > high)
    if outside.any():
        yield (
            f"{outside.sum()} of {values.size} values of {name} lie outside of bounds and will be "
            "cut there"
        )


def _columns(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    del y
    with np.errstate(all="ignore"):
        known = np.isfinite(X)
        low, high = (np.where(known, X, fill) for fill in (np.inf, -np.inf))
        constant = np.flatnonzero(low.min(axis=0) == high.max(axis=0)).tolist()
    if constant and len(X) > 1:
        yield f"columns {', '.join(_name(j, parameters) for j in constant)} are constant"


def _labels(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    classes = parameters.get("classes")
    if y is None or classes is None:
        return
    declared = Declared.of_classes(classes)
    classes, given = declared.labels, list(y)
    if declared.outcome is not None:
        given = [as_category(label, classes[0]) for label in given]
    labels = as_labels(given)
    unknown = codes(labels, np.unique(np.asarray(classes))) < 0
    if unknown.any():
        yield (
            f"{unknown.sum()} of {len(labels)} labels are not among classes, and their rows will "
            f"be left out, such as {', '.join(_most_frequent(labels[unknown]))}"
        )
    for label in classes:
        if not any(own == label for own in labels[~unknown]):
            yield f"no row has the label {label!r}"


def _budget(X: np.ndarray, y: Labels, parameters: Parameters) -> Iterator[str]:
    del y
    delta = parameters.get("delta")
    if delta is None:
        return
    n, what = parameters["n_records"], "rows"
    if parameters.get("max_rows_per_person") is not None:
        what = "persons"
    if delta >= 1 / n:
        yield (
            f"delta={delta:g} is not below one over the number of {what}, {n}: it allows to "
            f"publish some {what[:-1]}"
        )
    if parameters["epsilon"] * n < 20 * X.shape[1]:
        yield (
            f"epsilon={parameters['epsilon']:g} with {n} {what} and {X.shape[1]} columns: the "
            "result will be mostly noise"
        )


def _persons(person: np.ndarray, names: Any, most: int | None) -> Iterator[str]:
    nobody = person < 0
    if nobody.any():
        yield f"{nobody.sum()} of {len(person)} rows name no person, and will be left out"
    counts = np.bincount(person[~nobody])
    if most is not None and (beyond := counts > most).any():
        yield (
            f"{beyond.sum()} of {len(counts)} persons have more than max_rows_per_person={most} "
            f"rows (up to {counts.max()}): {(counts - most).clip(0).sum()} rows will be left out"
        )
    known = np.ravel(names)[~nobody]
    texts = {str(name) for name in known if isinstance(name, str)}
    if missing := sorted(texts & _MISSING_AS_TEXT):
        yield (
            f"persons are called {', '.join(missing)}, as astype(str) calls missing names: all "
            "their rows count as one person's; put None in the place of these texts"
        )
    others = {text for name in known if not isinstance(name, str) for text in _texts(name)}
    if both := sorted(texts & others):
        yield (
            f"{len(both)} names are there as a text and as another type, and count as two persons "
            f"each, such as {both[0]!r}: make texts of all"
        )
    if alike := len(texts) - len({" ".join(text.split()).casefold() for text in texts}):
        yield (
            f"{alike} names equal another one but for case or blanks, and count as persons of "
            "their own"
        )


def _texts(name: object) -> set[str]:
    """A name as texts; a column of whole numbers with a missing one is read as floats."""
    if isinstance(name, bytes):
        return {name.decode(errors="replace")}
    if isinstance(name, float) and name.is_integer():
        return {str(name), str(int(name))}
    return {str(name)}
