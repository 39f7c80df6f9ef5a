"""Rows with labels, and columns of categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from skdpbayes.checks import warn_user
from skdpbayes.declarations import Declared, declared_labels
from skdpbayes.facts import Facts, Shape
from skdpbayes.intake.columns import agree, as_declared
from skdpbayes.intake.labels import as_labels, classes_of, codes, refuse_mixed
from skdpbayes.intake.reading import Reader, Rows, response, shape_of, table_rows
from skdpbayes.intake.rows import bounded_rows, dense
from skdpbayes.intake.tables import Numbers, SparseTable, as_table
from skdpbayes.privacy.report import PrivacyLeakWarning

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records

LONGEST_ROW = 2.0**10
"""Norm at which rows of generalised linear models are cut, over `data_norm`: squares of squares of
such numbers do not overflow."""

_DENSE_UP_TO = 2**28  # bytes of float32 features above which a sparse X stays sparse


def norm_of(data_norm: float | None, n_features: int) -> float:
    """Bound on the norm of a row; None is the typical norm of standardised features."""
    return math.sqrt(n_features) if data_norm is None else float(data_norm)


@dataclass(frozen=True)
class ClassifiedRows(Reader):
    """Rows of bounded norm, and codes of their labels.

    Attributes
    ----------
    classes : array-like, Schema, Outcome or None
    data_norm : float or None
    longest : float
        Norm to which longer rows are scaled down, over `data_norm`.
    intercept : bool
        Whether rows get a constant column.
    always_dense : bool
        Whether sparse rows become dense whatever their size.
    """

    classes: Any = None
    data_norm: float | None = None
    longest: float = 1.0
    intercept: bool = True
    always_dense: bool = False
    by_part: ClassVar[bool] = True

    @cached_property
    def declaration(self) -> Declared:
        """The declared classes; a schema that has them describes the columns, too."""
        return Declared.of_classes(self.classes)

    def declared(self, shape: Shape) -> Facts:
        """The declared classes."""
        return Facts(shape, labels=self.declaration.classes())

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Numbers and labels, from public metadata alone unless classes have to be inferred."""
        X = self.numeric(owner, X, reset=True)
        labels = response(owner, y, X.shape[0], one_by_one=self.classes is not None)
        labels, classes, voided_by = classes_of(self.declaration, y, labels)
        facts = Facts(shape_of(owner, X), labels=classes, voided_by=voided_by)
        pack = partial(self.pack, classes=classes)
        return table_rows(facts, pack, X, labels, counted=partial(pack, on_grid=False))

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """Rows of one half, all of the first class."""
        X, _ = super().made_up(n_rows, shape)
        return X, np.full(n_rows, self.declaration.classes()[0])

    def pack(
        self, X: Numbers, y: np.ndarray, classes: np.ndarray, *, on_grid: bool = True
    ) -> Records:
        """Bounded rows ``x`` and codes of labels ``y``; a null row has the code -1."""
        from skdpbayes.intake.packing import pack_records, padded_zeros

        n, d = X.shape
        norm = self.longest * norm_of(self.data_norm, d)
        out = None if sparse.issparse(X) else padded_zeros((n, d + self.intercept))
        rows, null = bounded_rows(X, norm, intercept=self.intercept, dtype=np.float32, out=out)
        small = rows.shape[0] * rows.shape[1] * 4 <= _DENSE_UP_TO
        if sparse.issparse(rows) and (small or self.always_dense):
            rows = dense(rows)
        label = np.where(null, np.int32(-1), codes(y, classes))
        # Networks take rows in single precision: they have no product with rows alone.
        on_grid = on_grid and not (sparse.issparse(rows) or self.always_dense)
        # Null rows are zero.
        return pack_records(label >= 0, n=n, on_grid=on_grid, x=rows, y=label)


@dataclass(frozen=True)
class CategoryColumn(Reader):
    """One column of categories, as codes."""

    @cached_property
    def declaration(self) -> Declared:
        """The declared categories."""
        return Declared.of_columns(self.columns, "categories")

    def public(self) -> Any:
        """The declared categories, in their order; None without any."""
        return (
            self.columns
            if self.declaration.schema is None
            else self.declaration.categories(1)[0].tolist()
        )

    def declared(self, shape: Shape) -> Facts:
        """The declared categories."""
        categories = self.public()
        if categories is None:
            raise ValueError(
                "categories=None takes the set of categories from X, and a plan sees no rows: pass "
                "categories=[...]."
            )
        return Facts(shape, labels=declared_labels(categories, "categories"))

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Codes of the declared categories, or of all that are there."""
        del y
        column, categories = self.column(owner, X, reset=True), self.public()
        voided_by: tuple[str, ...] = ()
        if categories is not None:
            labels = declared_labels(categories, "categories")
            refuse_mixed(column.dtype, labels, "X", "categories")
        else:
            warn_user(
                "categories=None takes the set of categories from X, which is not private. Pass "
                "categories=[...].",
                PrivacyLeakWarning,
            )
            found = list(dict.fromkeys(column.tolist()))
            labels = declared_labels(found, "The set of values in X")
            voided_by = ("the set of categories was taken from X (categories=None)",)
        facts = Facts(Shape(len(column), 1), labels=labels, voided_by=voided_by)
        return Rows(facts, lambda: self.pack(column, labels))

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """A column of the first category."""
        del shape
        return np.full((n_rows, 1), next(iter(self.public() or (0,)))), None

    @staticmethod
    def pack(column: np.ndarray, labels: np.ndarray) -> Records:
        """Codes ``x``."""
        from skdpbayes.intake.packing import pack_records

        return pack_records(x=codes(column, labels))

    def column(self, owner: Any, X: Any, *, reset: bool) -> np.ndarray:
        """The one column of X, each cell by itself."""
        schema, table = self.declaration.schema, as_table(X, 1)
        if isinstance(table, SparseTable):
            raise TypeError("Sparse data was passed, but dense data is required: use X.toarray().")
        if schema is not None:
            agree(schema, table)
        validate_data(owner, table.raw, skip_check_array=True, reset=reset)
        if table.n_columns != 1:
            raise ValueError(
                f"{type(owner).__name__} takes one column of categories, got {table.n_columns}. "
                "Fit one estimator for each column, with a share of the budget each."
            )
        column = table.column(0)
        return column if schema is None else as_labels(as_declared(column, schema.columns[0]))
