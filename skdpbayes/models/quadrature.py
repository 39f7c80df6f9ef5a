"""Averages over normal and uniform distributions."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc


@cache
def normal_nodes(
    n_dimensions: int, n_nodes: int = 401, n_more: int = 512
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (n, n_dimensions) and weights of a quadrature for the standard normal distribution.

    `n_nodes` is for one dimension: 401 serve logits with standard deviations of dozens, 33 of five.
    `n_more`, an even number, is for more dimensions.
    """
    if n_dimensions == 1:
        nodes = np.linspace(-8, 8, n_nodes)
        weights = np.exp(-(nodes**2) / 2)
        return nodes[:, None], weights / weights.sum()
    uniform = qmc.Sobol(n_dimensions, seed=0).random(n_more // 2)
    half = ndtri(np.clip(uniform, 1e-6, 1 - 1e-6))
    return np.concatenate([half, -half]), np.full(n_more, 1 / n_more)


@cache
def uniform_nodes(n_dimensions: int, size: int) -> np.ndarray:
    """Points (size, n_dimensions) inside the unit cube, a quasi-random uniform sample."""
    points = qmc.Sobol(n_dimensions, seed=0).random(size)
    return np.clip(points, 2.0**-20, 1 - 2.0**-20).astype(np.float32)
