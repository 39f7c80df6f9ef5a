"""Rows with labels and a column that says to which group a row belongs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d, validate_data

from skdpbayes.cells import parsed
from skdpbayes.declarations import Declared
from skdpbayes.facts import Facts, Field, Shape
from skdpbayes.intake.classified import LONGEST_ROW, norm_of
from skdpbayes.intake.columns import agree, as_declared, numbers
from skdpbayes.intake.fields import facts_of, pack
from skdpbayes.intake.labels import as_labels, classes_of, codes, refuse_mixed
from skdpbayes.intake.reading import Reader, Rows, response
from skdpbayes.intake.rows import bounded_rows, dense, refuse_text_columns
from skdpbayes.intake.tables import as_table


@dataclass(frozen=True)
class GroupedRows(Reader):
    """Rows of bounded norm, codes of their groups, and codes of their labels.

    Attributes
    ----------
    classes : array-like, Schema, Outcome or None
    groups : array of shape (n_groups,)
        Labels of groups, sorted.
    group_column : int or str
        Position or name of the column of groups.
    data_norm : float or None
    intercept : bool
        Whether rows get a constant column.
    """

    classes: Any = None
    groups: np.ndarray = field(default_factory=lambda: np.zeros(0))
    group_column: int | str = 0
    data_norm: float | None = None
    intercept: bool = True

    def declared(self, shape: Shape) -> Facts:
        """The declared classes, and the fields of the model."""
        self._place(shape)
        fields = (
            Field("x", (shape.n_features - 1 + self.intercept,), "float32"),
            Field("group", (), "int32"),
            Field("y", (), "int32"),
        )
        return Facts(
            replace(shape, fields=fields), labels=Declared.of_classes(self.classes).classes()
        )

    def _place(self, shape: Shape) -> int:
        """Position of the column of groups, by the names of the table or else of the schema."""
        schema = self.declaration.schema
        names = shape.names or (range(shape.n_features) if schema is None else schema.names)
        return place_of(self.group_column, list(names))

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Fields ``x``, ``group`` and ``y``; null rows are NaN."""
        x, group = self.rows_and_groups(owner, X, reset=True)
        labels = response(owner, y, x.shape[0], one_by_one=self.classes is not None)
        labels, classes, voided_by = classes_of(Declared.of_classes(self.classes), y, labels)
        norm = LONGEST_ROW * norm_of(self.data_norm, x.shape[1])
        rows, null = bounded_rows(x, norm, intercept=self.intercept, dtype=np.float32)
        label = codes(labels[:], classes)
        rows[null | (group < 0) | (label < 0)] = np.nan  # which contributes nothing
        fields = {"x": rows, "group": group.clip(0), "y": label.clip(0)}
        n_features = owner.n_features_in_
        facts = facts_of(fields, n_features, labels=classes, voided_by=voided_by)
        return Rows(facts, lambda: pack(fields))

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """Rows of one half, all of the first group and the first class."""
        X = np.full((n_rows, shape.n_features), 0.5, object)
        X[:, self._place(shape)] = self.groups[0]
        return X, np.full(n_rows, Declared.of_classes(self.classes).classes()[0])

    def rows_and_groups(self, owner: Any, X: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """X without its column of groups, and the codes of those; each row by itself."""
        schema = self.declaration.schema
        width = vars(owner).get("n_features_in_") if schema is None else len(schema.columns)
        table = as_table(X, width)
        if schema is not None:
            agree(schema, table)
        names = table.names
        if names is None and isinstance(self.group_column, str):
            raise ValueError(
                f"group_column={self.group_column!r} is a name, and X is not a data frame. Pass a "
                "position."
            )
        validate_data(owner, table.raw, skip_check_array=True, reset=reset)
        column = place_of(
            self.group_column, list(range(table.n_columns) if names is None else names)
        )
        rest = table.select([j for j in range(table.n_columns) if j != column])
        own = table.column(column)
        if schema is None:
            refuse_text_columns(rest)
        of_rest = None
        if schema is not None:
            kind = schema.columns[column]
            own = (
                parsed(as_labels(own))
                if kind.categories is None
                else as_labels(as_declared(own, kind))
            )
            of_rest = schema.select([n for i, n in enumerate(schema.names) if i != column])
        refuse_mixed(own.dtype, self.groups, "the column of groups", "groups")
        return dense(numbers(rest, of_rest, None)), codes(column_or_1d(own), self.groups)


def place_of(column: int | str, names: list[Any]) -> int:
    """Position of the column of groups among columns of these names.

    Raises
    ------
    ValueError
        If there is none, or no other column.
    """
    n = len(names)
    place = names.index(column) if isinstance(column, str) and column in names else column
    if not isinstance(place, int | np.integer) or not -n <= place < n:
        raise ValueError(f"group_column={column!r} is no column of X, which has {n}.")
    if n < 2:
        raise ValueError(
            f"Found array with {n} feature(s), the groups, while a minimum of 2 is required."
        )
    return int(place) % n
