"""Rows of measurements in units of their public ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils import assert_all_finite

from skdpbayes.checks import warn_user
from skdpbayes.declarations import Declared
from skdpbayes.facts import Facts, Scales, Shape
from skdpbayes.intake.reading import Reader, Rows, response, response_numbers, shape_of, table_rows
from skdpbayes.privacy.report import PrivacyLeakWarning

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records

_NO_RESPONSE = np.zeros(1), np.ones(1)


def _centre_and_half(
    pair: tuple[Any, Any], n: int, *, centred: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.broadcast_to(np.asarray(end, np.float64), n) for end in pair)
    if centred:
        return low / 2 + high / 2, np.where(high > low, high / 2 - low / 2, 1.0)
    half = np.maximum(-low, high)
    return np.zeros(n), np.where(half > 0, half, 1.0)


def _range_of(X: np.ndarray) -> tuple[Any, Any]:
    """Range of the finite rows, which is not private."""
    finite = X[np.isfinite(X).all(axis=1)]
    return (finite.min(axis=0), finite.max(axis=0)) if len(finite) else (-1.0, 1.0)


@dataclass(frozen=True)
class MeasuredRows(Reader):
    """Rows and a response, in half ranges about their centres.

    Attributes
    ----------
    columns : object
        The first of `bounds`; None without any.
    bounds : tuple (X_bounds, y_bounds), Schema or None
        As users declare them; None takes the ranges from the rows, which is not private.
    centred : bool
        Whether centres may be other than zero.
    """

    bounds: Any = None
    centred: bool = True
    to_dense: ClassVar[bool] = True
    by_part: ClassVar[bool] = True

    @cached_property
    def declaration(self) -> Declared:
        """The declared bounds of columns and response."""
        if self.bounds is None:
            return Declared.of_columns(None)
        return Declared.of_regression(self.bounds)

    def declared(self, shape: Shape) -> Facts:
        """Scales by the declared bounds; without any, those of the unit cube, and what voids."""
        if self.bounds is None:
            unit = self._scales(shape, (-1.0, 1.0), (-1.0, 1.0))
            return Facts(shape, scales=unit, voided_by=_TAKEN)
        of_columns = self.declaration.bounds(shape.n_features, shape.names)
        return Facts(
            shape, scales=self._scales(shape, of_columns, self.declaration.response_bounds())
        )

    def _scales(self, shape: Shape, of_columns: Any, of_response: Any) -> Scales:
        columns = _centre_and_half(of_columns, shape.n_features, centred=self.centred)
        return Scales(*columns, *_centre_and_half(of_response, 1, centred=self.centred))

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Numbers in the units of the data; ranges, if they are not declared."""
        X = self.numeric(owner, X, reset=True)
        y = response(owner, y, len(X), one_by_one=self.bounds is not None)
        _refuse_text(y, self.declaration)
        shape = shape_of(owner, X)
        if self.bounds is None:
            X, y = X[:], response_numbers(y)
            assert_all_finite(y, input_name="y")
            warn_user(
                "bounds=None takes the ranges of X and y from the data, which is not private. Pass "
                "bounds=((X_low, X_high), (y_low, y_high)).",
                PrivacyLeakWarning,
            )
            own = self._scales(shape, _range_of(X), (y.min(), y.max()))
            facts = Facts(shape, scales=own, voided_by=_TAKEN)
        else:
            facts = self.declared(shape)
        scales = facts.own_scales()
        return table_rows(facts, lambda X, y: self.pack(X, response_numbers(y), scales), X, y)

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """Rows and responses of one half."""
        return super().made_up(n_rows, shape)[0], np.full(n_rows, 0.5)

    def pack(self, X: np.ndarray, y: np.ndarray, scales: Scales) -> Records:
        """Scaled rows ``x`` and responses ``y``."""
        from skdpbayes.intake.packing import pack_records, padded_rows

        rows = padded_rows(X.shape, lambda part: (X[part] - scales.centre) / scales.half)
        return pack_records(n=len(X), x=rows, y=_scaled_response(y, scales))


_TAKEN = ("the ranges of X and y were taken from the data (bounds=None)",)


def _scaled_response(y: np.ndarray, scales: Scales) -> np.ndarray:
    with np.errstate(all="ignore"):
        return ((y - scales.y_centre) / scales.y_half).astype(np.float32)


@dataclass(frozen=True)
class RegressionRows(MeasuredRows):
    """Rows with a constant column if they are centred; null rows are zero."""

    def pack(self, X: np.ndarray, y: np.ndarray, scales: Scales) -> Records:
        """Scaled rows ``x`` and responses ``y``, which are NaN in null rows."""
        from skdpbayes.intake.packing import pack_records, padded_rows

        responses = _scaled_response(y, scales)
        usable, (n, d) = np.isfinite(responses), X.shape

        def rows(part: slice) -> np.ndarray:
            own = ((X[part] - scales.centre) / scales.half).astype(np.float32)
            usable[part] &= np.isfinite(own).all(axis=1)
            own[~usable[part]] = 0
            return np.column_stack([own, usable[part]]) if self.centred else own

        packed = padded_rows((n, d + self.centred), rows)
        responses[~usable] = np.nan
        return pack_records(usable, n=n, x=packed, y=responses)


def _refuse_text(y: np.ndarray, declared: Declared) -> None:
    if y.dtype.kind in "US" and declared.outcome is None:
        raise ValueError(f"y holds text (dtype {y.dtype}); a regression needs numbers.")


@dataclass(frozen=True)
class BoundedRows(Reader):
    """Rows in half ranges about their centres, without a response.

    Attributes
    ----------
    round : bool
        Whether all columns have the largest of their scales.
    """

    round: bool = False
    by_part: ClassVar[bool] = True

    def declared(self, shape: Shape) -> Facts:
        """Scales by the declared bounds; without any, those of the unit cube, and what voids."""
        if self.columns is None:
            return Facts(shape, scales=self._scales(shape, (-1.0, 1.0)), voided_by=_X_TAKEN)
        bounds = self.declaration.bounds(shape.n_features, shape.names)
        return Facts(shape, scales=self._scales(shape, bounds))

    def _scales(self, shape: Shape, bounds: tuple[Any, Any]) -> Scales:
        centre, half = _centre_and_half(bounds, shape.n_features)
        half = np.full_like(half, half.max()) if self.round else half
        return Scales(centre, half, *_NO_RESPONSE)

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Numbers in the units of the data; ranges, if they are not declared."""
        del y
        X = self.numeric(owner, X, reset=True)
        shape = shape_of(owner, X)
        if self.columns is None:
            warn_user(
                "bounds=None takes the ranges of X from the data, which is not private. Pass "
                "bounds=(low, high).",
                PrivacyLeakWarning,
            )
            X = X[:]
            own = self._scales(shape, _range_of(X.astype(np.float64)))
            facts = Facts(shape, scales=own, voided_by=_X_TAKEN)
        else:
            facts = self.declared(shape)
        scales = facts.own_scales()
        return table_rows(facts, lambda X: self.pack(X, scales), X)

    @staticmethod
    def pack(X: np.ndarray, scales: Scales) -> Records:
        """Scaled rows ``x``."""
        from skdpbayes.intake.packing import pack_records, padded_rows

        rows = padded_rows(X.shape, lambda part: (X[part] - scales.centre) / scales.half)
        return pack_records(n=len(X), x=rows)


_X_TAKEN = ("the ranges of X were taken from the data (bounds=None)",)


@dataclass(frozen=True)
class ClippedRows(Reader):
    """Rows cut at their bounds, between -1 and 1."""

    to_dense: ClassVar[bool] = True
    by_part: ClassVar[bool] = True

    def bounds(self, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of each column."""
        return self.declaration.bounds(shape.n_features, shape.names)

    def declared(self, shape: Shape) -> Facts:
        """Scales by the declared bounds."""
        scales = _centre_and_half(self.bounds(shape), shape.n_features)
        return Facts(shape, scales=Scales(*scales, *_NO_RESPONSE))

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Numbers in the units of the data."""
        del y
        X = self.numeric(owner, X, reset=True)
        shape = shape_of(owner, X)
        bounds = self.bounds(shape)
        return table_rows(self.declared(shape), lambda X: self.pack(X, *bounds), X)

    @staticmethod
    def pack(X: np.ndarray, low: np.ndarray, high: np.ndarray) -> Records:
        """Rows ``x``."""
        from skdpbayes.intake.packing import pack_records, padded_rows

        def rows(part: slice) -> np.ndarray:
            own = np.clip(X[part].astype(np.float64), low, high)
            return 2 * (own - low) / (high - low) - 1

        return pack_records(n=len(X), x=padded_rows(X.shape, rows))
