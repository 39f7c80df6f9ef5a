"""Replicates of truth, data and posterior in one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from skdpbayes.calibration._check import Floats, RandomState, check_count

if TYPE_CHECKING:
    from jax import Array

Simulator: TypeAlias = "Callable[[Array], tuple[Array, Array]]"


def simulate(
    simulator: Simulator,
    n_replicates: int,
    *,
    batch_size: int = 64,
    random_state: RandomState = None,
) -> tuple[Floats, Floats]:
    """Run a simulator over independent replicates, vectorised and compiled once.

    Parameters
    ----------
    simulator : callable
        Function of one JAX key that can be compiled and vectorised. It draws a truth from the
        prior, data given the truth, and a release of the data. It returns the truth, of shape
        (n_parameters,), and posterior draws, of shape (n_draws, n_parameters). It is traced with
        64-bit types enabled.
    n_replicates : int
    batch_size : int, default=64
        Number of replicates that run, and take up memory, at a time. It changes results by rounding
        only.
    random_state : int, Generator or None
        An integer is the seed of the keys. Replicate k depends only on the seed and on k.

    Returns
    -------
    truth : array of shape (n_replicates, n_parameters), float64
    draws : array of shape (n_replicates, n_draws, n_parameters), float64
        The checks take the draws first: ``tarp_coverage(draws, truth)``.

    Raises
    ------
    ValueError
        If the simulator returns other shapes, or an argument is out of range.

    Examples
    --------
    >>> import jax
    >>> from skdpbayes.calibration import simulate
    >>> def simulator(key):
    ...     prior, data, posterior = jax.random.split(key, 3)
    ...     truth = jax.random.normal(prior, (1,))
    ...     observed = truth + jax.random.normal(data, (1,))
    ...     return truth, observed / 2 + 0.5**0.5 * jax.random.normal(posterior, (200, 1))
    >>> truth, draws = simulate(simulator, 100, random_state=0)
    >>> truth.shape, draws.shape
    ((100, 1), (100, 200, 1))
    """
    import jax
    import jax.numpy as jnp

    n_replicates = check_count(n_replicates, "n_replicates")
    batch_size = min(check_count(batch_size, "batch_size"), n_replicates)
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        seed = int(random_state)
    else:
        seed = int(np.random.default_rng(random_state).integers(2**63))

    def replicate(key: Array, index: Array) -> tuple[Array, Array]:
        result = simulator(jax.random.fold_in(key, index))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise ValueError("the simulator must return a pair: the truth and posterior draws.")
        truth, draws = (jnp.asarray(part, jnp.float64) for part in result)
        if truth.ndim != 1 or draws.ndim != 2 or draws.shape[1] != truth.shape[0]:
            raise ValueError(
                "the simulator must return a truth of shape (n_parameters,) and draws of shape "
                f"(n_draws, n_parameters), got {truth.shape} and {draws.shape}."
            )
        return truth, draws

    with jax.enable_x64(True):
        key = jax.random.key(seed)
        program = jax.jit(jax.vmap(replicate, in_axes=(None, 0)))
        truths, draws = [], []
        for start in range(0, n_replicates, batch_size):
            # The last batch is as long as the others, so that nothing is compiled again; its
            # surplus is dropped.
            truth, posterior = program(key, jnp.arange(start, start + batch_size, dtype=jnp.uint32))
            keep = min(batch_size, n_replicates - start)
            truths.append(np.asarray(truth)[:keep])
            draws.append(np.asarray(posterior)[:keep])
    return np.concatenate(truths), np.concatenate(draws)
