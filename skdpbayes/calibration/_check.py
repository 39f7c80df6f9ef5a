"""Common parts of the checks: validation of arguments, random streams, and bands."""

from __future__ import annotations

import numbers
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats: TypeAlias = NDArray[np.float64]
RandomState: TypeAlias = int | np.random.Generator | None


def check_draws(draws: ArrayLike) -> Floats:
    """Draws as float64, of shape (n_replicates, n_draws, n_parameters)."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim != 3 or 0 in draws.shape:
        hint = " For one parameter, add a last axis: draws[:, :, None]." if draws.ndim == 2 else ""
        raise ValueError(
            "draws must have the shape (n_replicates, n_draws, n_parameters), none of them 0, got "
            f"{draws.shape}.{hint}"
        )
    return _finite(draws, "draws")


def check_draws_and_truth(
    draws: ArrayLike, truth: ArrayLike, smallest: int = 1
) -> tuple[Floats, Floats]:
    """Draws as in `check_draws`, and truths of shape (n_replicates, n_parameters).

    There must be `smallest` replicates or more.
    """
    draws = check_draws(draws)
    truth = np.asarray(truth, dtype=np.float64)
    expected = (draws.shape[0], draws.shape[2])
    if truth.shape != expected:
        raise ValueError(
            f"truth must have the shape (n_replicates, n_parameters) = {expected}, as draws have "
            f"the shape {draws.shape}; got {truth.shape}."
        )
    if len(truth) < smallest:
        raise ValueError(f"at least {smallest} replicates are needed, got {len(truth)}.")
    return draws, _finite(truth, "truth")


def check_binary(y_true: ArrayLike, proba: ArrayLike) -> tuple[NDArray[np.bool_], Floats]:
    """Outcomes and probabilities of the outcome 1, both of shape (n_samples,)."""
    y_true, proba = np.asarray(y_true), np.asarray(proba, dtype=np.float64)
    if proba.ndim != 1:
        hint = " Pass the column of the outcome 1: proba[:, 1]." if proba.ndim == 2 else ""
        raise ValueError(f"proba must have the shape (n_samples,), got {proba.shape}.{hint}")
    if y_true.shape != proba.shape or not len(proba):
        raise ValueError(
            "y_true and proba must have the same shape (n_samples,), not empty, got "
            f"{y_true.shape} and {proba.shape}."
        )
    if not np.isin(y_true, [0, 1]).all():
        raise ValueError(
            "y_true must hold 0 and 1 (or False and True) only; for labels, pass "
            "y == positive_label."
        )
    if not ((proba >= 0.0) & (proba <= 1.0)).all():
        raise ValueError("proba must be in [0, 1].")
    return y_true.astype(bool), proba


def check_open_unit(value: object, name: str) -> float:
    """A number strictly between 0 and 1."""
    if not isinstance(value, numbers.Real) or not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must be a number strictly between 0 and 1, got {value!r}.")
    return float(value)


def check_count(value: object, name: str, smallest: int = 1) -> int:
    """An integer of at least `smallest`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < smallest:
        raise ValueError(f"{name} must be an integer of at least {smallest}, got {value!r}.")
    return int(value)


def generator(random_state: RandomState) -> np.random.Generator:
    """NumPy's generator; an integer gives another stream than in ``np.random.default_rng``.

    Otherwise truths simulated with seed 0 and checked with seed 0 would equal the reference points.
    """
    if isinstance(random_state, numbers.Integral):
        return np.random.default_rng([int(random_state), 0x7A29])
    return np.random.default_rng(random_state)


def _finite(values: Floats, name: str) -> Floats:
    if not np.isfinite(values).all():
        wrong = np.count_nonzero(~np.isfinite(values))
        raise ValueError(f"{name} must be finite, got {wrong} values that are not.")
    return values


def binomial_band(n: ArrayLike, share: ArrayLike, confidence: float) -> Floats:
    """Central band of the number of successes in `n` trials: lower and upper ends."""
    return stats.binom.ppf([[(1 - confidence) / 2], [(1 + confidence) / 2]], n, share)
