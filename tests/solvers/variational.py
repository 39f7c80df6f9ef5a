"""Variational Bayes for logistic regression, by itself: what solvers are compared with."""

import numpy as np
from scipy.special import expit

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def variational_optimum(Z, y, mean_field):
    """Mean and covariance of the Gaussian of highest ELBO (prior N(0, I)), by Newton steps and quadrature."""
    mean, covariance = np.zeros(Z.shape[1]), 0.01 * np.eye(Z.shape[1])
    for _ in range(300):
        spread = np.sqrt(np.einsum("ni,ij,nj->n", Z, covariance, Z))
        p = expit((Z @ mean)[:, None] + spread[:, None] * NODES)
        precision = (Z * ((p * (1 - p)) @ WEIGHTS)[:, None]).T @ Z + np.eye(len(mean))
        covariance = np.diag(1 / np.diag(precision)) if mean_field else np.linalg.inv(precision)
        step = np.linalg.solve(precision, Z.T @ (y - p @ WEIGHTS) - mean)
        mean = mean + step
        if np.abs(step).max() < 1e-10:
            return mean, covariance
    raise AssertionError("the reference did not converge")
