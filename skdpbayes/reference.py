"""Exact posteriors for comparison with private ones; nothing here is private."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from sklearn.utils.validation import check_X_y

__all__ = ["logistic_gibbs"]


def logistic_gibbs(
    X: ArrayLike,
    y: ArrayLike,
    *,
    prior_scale: ArrayLike = 1.0,
    fit_intercept: bool = True,
    n_draws: int = 1000,
    n_burn: int = 500,
    n_chains: int = 4,
    random_state: int | np.random.Generator | None = None,
) -> np.ndarray:
    """NOT PRIVATE: draws from the exact posterior of Bayesian logistic regression.

    .. warning::
       **This is not differentially private.** No noise is added: the draws, and everything
       computed from them, reveal rows of `X` and `y`. Use it on public or simulated data.

    The draws are a reference for private posteriors: the model is that of
    `DPBayesianLogisticRegression` for two classes, with independent normal priors of mean zero for
    coefficients and intercept.

    The Gibbs sampler of Polson, Scott and Windle (2013) alternates between a Polya-Gamma variable
    of each row given the coefficients, and normal coefficients given these. There is nothing to
    tune; an iteration costs ``n_samples * n_columns**2``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,)
        0 and 1, or False and True.
    prior_scale : float or array-like of shape (n_columns,), default=1.0
        Prior standard deviation of each coefficient, and of the intercept.
    fit_intercept : bool, default=True
        Append a column of ones.
    n_draws : int, default=1000
        Number of draws of each chain.
    n_burn : int, default=500
        Number of draws of each chain that are dropped first.
    n_chains : int, default=4
        Chains run one after the other. Each starts at a draw from the prior.
    random_state : None, int or numpy.random.Generator

    Returns
    -------
    draws : array of shape (n_chains, n_draws, n_columns)
        Coefficients, then the intercept, if there is one: the order of the private estimator's
        `posterior_`. NumPyro's diagnostics and ArviZ take this shape, and so does
        `skdpbayes.posteriors.DrawsPosterior`, which has moments.

    Raises
    ------
    ImportError
        If `polyagamma` is not installed: ``pip install skdpbayes[reference]``.
    ValueError
        If an argument is out of range, `y` has values other than 0 and 1, or `X` has values that
        are not finite numbers.

    References
    ----------
    Polson, Scott and Windle (2013), *Bayesian inference for logistic models using Pólya-Gamma
    latent variables*, Journal of the American Statistical Association 108.

    Examples
    --------
    >>> import numpy as np
    >>> from numpyro.diagnostics import split_gelman_rubin
    >>> from skdpbayes.reference import logistic_gibbs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X @ [2.0, -1.0] + rng.logistic(size=300) > 0
    >>> draws = logistic_gibbs(X, y, random_state=0)
    >>> draws.shape
    (4, 1000, 3)
    >>> bool((split_gelman_rubin(draws) < 1.02).all())
    True
    """
    for name, value, least in (
        ("n_draws", n_draws, 1),
        ("n_burn", n_burn, 0),
        ("n_chains", n_chains, 1),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value!r}.")
    rows, outcomes = check_X_y(X, y, dtype=np.float64)
    if not np.isin(outcomes, [0, 1]).all():
        raise ValueError(
            "y must hold 0 and 1 (or False and True) only; for labels, pass y == positive_label."
        )
    if not np.all(np.asarray(prior_scale) > 0):
        raise ValueError(f"prior_scale must be positive, got {prior_scale!r}.")
    rows = np.column_stack([rows, np.ones(len(rows))]) if fit_intercept else rows
    scale = np.broadcast_to(np.asarray(prior_scale, np.float64), rows.shape[1:])
    streams = np.random.default_rng(random_state).spawn(n_chains)
    return np.stack([_chain(rows, outcomes, scale, n_draws, n_burn, rng) for rng in streams])


def _chain(
    rows: np.ndarray,
    y: np.ndarray,
    prior_scale: np.ndarray,
    n_draws: int,
    n_burn: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws of one chain, of shape (n_draws, n_columns)."""
    try:
        from polyagamma import random_polyagamma
    except ImportError as error:
        raise ImportError(
            "logistic_gibbs needs polyagamma, which is not installed: "
            "pip install skdpbayes[reference]"
        ) from error
    linear, prior = rows.T @ (y - 0.5), np.diag(prior_scale**-2.0)
    draws = np.empty((n_draws, rows.shape[1]))
    theta = prior_scale * rng.standard_normal(rows.shape[1])
    for i in range(-n_burn, n_draws):
        weighted = rows * np.sqrt(random_polyagamma(1, rows @ theta, random_state=rng))[:, None]
        root = np.linalg.cholesky(weighted.T @ weighted + prior)
        half = solve_triangular(root, linear, lower=True) + rng.standard_normal(len(linear))
        theta = solve_triangular(root, half, lower=True, trans="T")
        if i >= 0:
            draws[i] = theta
    return draws
