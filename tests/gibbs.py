"""A Polya-Gamma Gibbs sampler for logistic regression (Polson, Scott and Windle 2013): the exact posterior."""

import numpy as np
from polyagamma import random_polyagamma


def gibbs(X, y, prior_scale=1.0, n_draws=4000, n_burn=500, seed=0):
    """Posterior draws of the coefficients under a normal prior, of shape (n_draws, n_columns)."""
    rng = np.random.default_rng(seed)
    d = X.shape[1]
    linear, prior = X.T @ (y - 0.5), np.eye(d) / prior_scale**2
    theta, draws = np.zeros(d), np.empty((n_draws, d))
    for i in range(-n_burn, n_draws):
        omega = random_polyagamma(1, X @ theta, random_state=rng)
        root = np.linalg.cholesky((X * omega[:, None]).T @ X + prior)
        mean = np.linalg.solve(root.T, np.linalg.solve(root, linear))
        theta = mean + np.linalg.solve(root.T, rng.standard_normal(d))
        if i >= 0:
            draws[i] = theta
    return draws
