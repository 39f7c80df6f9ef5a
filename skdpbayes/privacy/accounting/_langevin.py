"""Step sizes of Langevin dynamics, whose own noise is the privacy noise."""

from __future__ import annotations

import math

import numpy as np

from skdpbayes.privacy.accounting._calibration import calibrate_noise
from skdpbayes.privacy.accounting._steps import (
    check_count,
    check_delta,
    check_epsilon,
    check_sampling_rate,
)

MOST_BLOCKS = 64  # of a schedule


def step_size(
    noise_multiplier: float, sampling_rate: float, clipping_norm: float, friction: float = 1.0
) -> float:
    """Step size whose Langevin noise is the mechanism's: ``2 a q^2 / (C sigma)^2``, friction a.

    With the calibrated noise multiplier of a budget this is the largest step size that the budget
    allows.
    """
    if noise_multiplier == 0:
        return math.inf
    return 2 * friction * (sampling_rate / (clipping_norm * noise_multiplier)) ** 2


def noise_multiplier(
    step: float, sampling_rate: float, clipping_norm: float, friction: float = 1.0
) -> float:
    """Inverse of `step_size`: ``q sqrt(2 a / h) / C``."""
    return sampling_rate * math.sqrt(2 * friction / step) / clipping_norm


def decreasing_blocks(
    n_steps: int, most: int = MOST_BLOCKS, power: float = 1 / 3
) -> list[tuple[float, int]]:
    """Step sizes proportional to ``t^-power``, constant on a few geometric blocks.

    Returns
    -------
    blocks : list of (relative step size, number of steps)
        The relative step size of a block is that of its last step, so that no step exceeds the
        law's.
    """
    edges = np.unique(np.round(np.geomspace(1, n_steps, min(most, n_steps))).astype(int))
    counts = np.diff(np.concatenate([[0], edges]))
    return [(float(end) ** -power, int(count)) for end, count in zip(edges, counts, strict=True)]


def step_size_bound(
    epsilon: float,
    delta: float,
    *,
    n_steps: int,
    sampling_rate: float,
    clipping_norm: float = 1.0,
    schedule: str = "constant",
    friction: float = 1.0,
    adjacency: str = "zero_out",
) -> float:
    """Largest step size with which Langevin dynamics is (epsilon, delta)-private by its own noise.

    The chain is ``theta' = theta + h (G / q + grad log prior) + N(0, 2h)``, G the sum of clipped
    gradients of a Poisson sample; its stationary law is the posterior. Li et al. (2019, Theorems 3
    and 4) give such bounds up to constants that they do not name, for ``eta = N h`` and a chain
    with half of the noise.

    Parameters
    ----------
    epsilon, delta : float
    n_steps : int
    sampling_rate : float
        Probability with which a record enters a batch.
    clipping_norm : float, default=1.0
        Bound on the norm of a record's gradient.
    schedule : {"constant", "decreasing"}, default="constant"
        Whether steps stay as they are or fall as ``t^(-1/3)``; the bound is that of the first.
    friction : float, default=1.0
        Of a chain with momentum (``sampler="sghmc"`` or ``"sgnht"``), ``v' = (1 - a) v + h (G / q +
        grad log prior) + N(0, 2ah)``, ``theta' = theta + v'``; 1 without.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"

    Returns
    -------
    h : float
        In units of the log posterior; infinity if epsilon is.

    Examples
    --------
    The setting of Li et al. (2019, section 3.1), with all 50000 records in each step:

    >>> from skdpbayes.privacy import step_size_bound
    >>> h = step_size_bound(0.1, 1e-5, n_steps=10_000, sampling_rate=1.0)
    >>> bool(1e-6 < 50_000 * h < 1)
    True
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    n_steps, sampling_rate = check_count(n_steps, "n_steps"), check_sampling_rate(sampling_rate)
    if not (math.isfinite(clipping_norm) and clipping_norm > 0):
        raise ValueError(f"clipping_norm must be positive and finite, got {clipping_norm!r}.")
    if not 0 < friction <= 1:
        raise ValueError(f"friction must lie in (0, 1], got {friction!r}.")
    if schedule not in ("constant", "decreasing"):
        raise ValueError(f"schedule must be 'constant' or 'decreasing', got {schedule!r}.")
    blocks = [(1.0, n_steps)] if schedule == "constant" else decreasing_blocks(n_steps)
    noise = calibrate_noise(
        epsilon, delta, sampling_rate, n_steps,
        schedule=[(size**-0.5, count) for size, count in blocks],
        adjacency=adjacency,
    ).noise_multiplier  # fmt: skip
    return step_size(noise, sampling_rate, clipping_norm, friction)


def wang_step_size_bound(
    epsilon: float, delta: float, *, n_steps: int, clipping_norm: float = 1.0
) -> float:
    """Step size that Wang, Fienberg and Smola (2015) allow, in the units of `step_size_bound`.

    ``h = epsilon^2 / (128 C^2 T log(2.5 T / delta) log(2 / delta))``: theirs is ``eta = N h`` (as
    quoted by Li et al. 2019, section 3.1), and their chain has half of the noise.

    Examples
    --------
    >>> from skdpbayes.privacy import step_size_bound, wang_step_size_bound
    >>> theirs = wang_step_size_bound(0.1, 1e-5, n_steps=10_000)
    >>> step_size_bound(0.1, 1e-5, n_steps=10_000, sampling_rate=0.01) > 1000 * theirs
    True
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    n_steps = check_count(n_steps, "n_steps")
    logs = math.log(2.5 * n_steps / delta) * math.log(2 / delta)
    return epsilon**2 / (128 * clipping_norm**2 * n_steps * logs)
