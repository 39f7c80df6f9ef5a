"""The transformer of a whole table, from its public schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skdpbayes.declarations import PREPARED
from skdpbayes.preprocessing._public import BoundedScaler, CategoryEncoder
from skdpbayes.schema import Schema

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer


def make_preprocessor(
    schema: Schema,
    *,
    feature_range: tuple[float, float] = PREPARED,
    drop: str | dict[str, object] | None = None,
) -> ColumnTransformer:
    """Transformer of a data frame: numbers are scaled by their bounds, categories encoded.

    Its `fit` looks at the names of columns alone, so it costs no privacy inside a pipeline. At the
    default `feature_range` a row has at most the norm ``len(schema.columns) ** 0.5``, which is the
    `data_norm` of a model behind it.

    Parameters
    ----------
    schema : Schema
        Columns of the frame that are used; others are left out, and so is the outcome.
    feature_range : tuple (low, high), default=(-1, 1)
        Of `BoundedScaler`.
    drop : {"first", "if_binary"}, dict or None, default=None
        Of `CategoryEncoder`: the category of each column that others are compared with. A cell of
        no category is then missing, and its row is left out of fits.

    Returns
    -------
    preprocessor : sklearn.compose.ColumnTransformer
        Unfitted, with the steps ``numbers`` and ``categories``; numbers come first.

    Raises
    ------
    ValueError
        For a number without bounds.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpbayes.preprocessing import make_preprocessor
    >>> from skdpbayes.schema import Schema
    >>> schema = Schema({"ward": {"categories": ["north", "south"]}, "age": {"bounds": [0, 100]}})
    >>> frame = pd.DataFrame({"age": [75.0], "ward": ["north"], "name": ["Ann"]})
    >>> prepare = make_preprocessor(schema)
    >>> prepare.fit_transform(frame).tolist()
    [[0.5, 1.0, 0.0]]
    >>> prepare.get_feature_names_out().tolist()
    ['age', 'ward_north', 'ward_south']
    """
    from sklearn.compose import ColumnTransformer

    if not isinstance(schema, Schema):
        raise ValueError(f"schema must be a Schema, got {type(schema).__name__}.")
    categories = [own.name for own in schema.columns if own.kind == "category"]
    numbers = [name for name in schema.names if name not in categories]
    unbounded = [own.name for own in schema.columns if own.name in numbers and own.bounds is None]
    if unbounded:
        raise ValueError(f"The schema gives no bounds of the columns {unbounded}: declare them.")
    steps = []
    if numbers:
        scaler = BoundedScaler(schema.select(numbers), feature_range=feature_range)
        steps.append(("numbers", scaler, numbers))
    if categories:
        encoder = CategoryEncoder(schema.select(categories), drop=drop)
        steps.append(("categories", encoder, categories))
    return ColumnTransformer(steps, verbose_feature_names_out=False)
