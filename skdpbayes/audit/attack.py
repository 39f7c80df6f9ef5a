"""A distinguishing attack on whole fits, and the lower bound on epsilon that it implies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from skdpbayes import inference
from skdpbayes.audit.fit import contribution, multipliers, units
from skdpbayes.mechanism.draws import Draws
from skdpbayes.mechanism.private_sum import Query, Release, private_sum
from skdpbayes.mechanism.records import Records, Tree
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Model
from skdpbayes.privacy.accounting import PrivacyCurve, compose
from skdpbayes.privacy.report import PrivacySpent
from skdpbayes.solvers.base import Solver

if TYPE_CHECKING:
    from skdpbayes.audit.fit import Fit

_AT_A_TIME = 250  # trials in one call of the compiled program
_LEAST_NOISE = 0.1  # smallest noise multiplier given to the accountant


@jax.jit
def _attacks(
    keys: jax.Array,
    draws: Draws,
    states: Tree,
    records: Records,
    target: Records,
    index: np.int32,
    bounds: np.ndarray,
    model: Model,
    solver: Solver,
    mechanism: Mechanism,
    sigmas: np.ndarray,
) -> tuple[Tree, jax.Array]:
    """Run some steps of all trials: states, and log-likelihood ratios for the target."""

    def one(
        key: jax.Array, indices: jax.Array, starts: jax.Array, noise: jax.Array, state: Tree
    ) -> tuple[Tree, jax.Array]:
        own = draws._replace(indices=indices, starts=starts, noise=noise)

        def release(query: Query, blocks: Mapping[str, Block], step: jax.Array) -> Release:
            return private_sum(query, blocks, mechanism, own.at(step), step, records)

        def observe(
            query: Query, blocks: Mapping[str, Block], step: jax.Array, release: Release
        ) -> jax.Array:
            moved = contribution(
                query, blocks, mechanism, step, target, index, bounds, own.at(step).noise
            )
            moved = moved / sigmas[step]
            seen = ravel_pytree(release)[0].astype(float) / (units(blocks, release) * sigmas[step])
            gain = jnp.vdot(seen, moved) - jnp.vdot(moved, moved) / 2
            sampled = mechanism.rate.astype(float)
            without = jnp.where(sampled < 1, jnp.log1p(-jnp.minimum(sampled, 1 - 1e-9)), -jnp.inf)
            return jnp.logaddexp(without, jnp.log(sampled) + gain)[None]

        kept = jnp.zeros((len(sigmas), 1))
        state, ratios = inference.loop(
            release, key, draws.first, draws.stop, model, solver, mechanism, state, kept, observe
        )
        return state, ratios.sum()

    return jax.vmap(one)(keys, draws.indices, draws.starts, draws.noise, states)


def log_likelihood_ratios(
    side: Fit, target: Fit, record: int, n_trials: int, seed: int
) -> np.ndarray:
    """Log-likelihood ratios of "the target's record is there", for fits of one side."""
    out = []
    with jax.enable_x64(True):
        mechanism, records = jax.device_put(side.spec.traced()), jax.device_put(side.records)
        index, bounds = _place(target, record), np.array(target.records.bounds())
        sizes = inference.sizes_of_steps(
            side.model, side.solver, mechanism, records, side.spec.n_steps
        )
        sigmas = multipliers(side)
        start = jax.jit(jax.vmap(lambda key: inference.start(key, side.model, side.solver)))
        size = math.ceil(n_trials / math.ceil(n_trials / _AT_A_TIME))  # always as many
        for first in range(0, n_trials, size):
            keys = [side.keys(seed + min(first + i, n_trials - 1)) for i in range(size)]
            total = np.zeros(size)
            for chain in range(side.spec.n_chains):
                own = jnp.stack([key.solver[chain] for key in keys])
                parts = [
                    inference.draws_of_chain(
                        key.sampling[chain],
                        key.noise[chain],
                        side.spec,
                        sizes,
                        side.records.bounds(),
                        records.n_slots,
                    )
                    for key in keys
                ]
                states = start(own)
                for part in zip(*parts, strict=True):
                    stacked = part[0]._replace(
                        **{
                            name: np.stack([getattr(p, name) for p in part])
                            for name in ("indices", "starts", "noise")
                        }
                    )
                    states, ratios = _attacks(
                        own, stacked, states, records, jax.device_put(target.records), index,
                        bounds, side.model, side.solver, mechanism, sigmas,
                    )  # fmt: skip
                    total = total + np.asarray(ratios)
            out.append(total)
    return np.concatenate(out)[:n_trials]


def _place(fit: Fit, record: int) -> np.int32:
    """Place of the row among the records; documents are sorted by length, so there it is last."""
    return np.int32(int(fit.records.n_records) - 1 if fit.records.widths else record)


def _limits(
    sides: Sequence[np.ndarray], threshold: float, confidence: float
) -> tuple[float, float]:
    """Upper limit of the false and lower limit of the true positive rate (Clopper-Pearson)."""
    each = (1 - confidence) / 2
    (false, n), (true, m) = (((side > threshold).sum(), len(side)) for side in sides)
    high = stats.beta.ppf(1 - each, false + 1, n - false) if false < n else 1.0
    low = stats.beta.ppf(each, true, m - true + 1) if true > 0 else 0.0
    return float(high), float(low)


def epsilon_lower_bound(
    claim: PrivacySpent, statistics: Sequence[np.ndarray], confidence: float
) -> tuple[float, float, float]:
    """False and true positive rate of the attack, and the epsilon that they imply.

    A quarter of the trials choose the threshold. The epsilon is that of the claimed steps with the
    least noise among those whose trade-off curve the attack beats.
    """
    choosing = [side[: len(side) // 4] for side in statistics]
    judged = [side[len(side) // 4 :] for side in statistics]
    # Decreasing noise, on a fine grid around the claimed one.
    factors = 2 ** np.r_[3:1:12j, 0.95:-1:80j, -1.1:-3:12j]
    curves = [_with_noise_wrong_by(claim, factor) for factor in factors]

    def beaten(fpr: np.ndarray | float, tpr: np.ndarray | float) -> np.ndarray | int:
        return sum(np.asarray(curve.tpr(fpr)) < tpr for curve in curves)

    candidates = np.unique(np.quantile(np.concatenate(choosing), np.linspace(0.02, 0.98, 49)))
    rates = np.array([_limits(choosing, threshold, confidence) for threshold in candidates]).T
    fpr, tpr = _limits(judged, candidates[np.argmax(beaten(*rates))], confidence)
    n = int(beaten(fpr, tpr))
    return fpr, tpr, curves[n - 1].epsilon(claim.delta) if n else 0.0


def _with_noise_wrong_by(claim: PrivacySpent, factor: float) -> PrivacyCurve:
    sizes = [max(factor * piece.noise_multiplier, _LEAST_NOISE) for piece in claim.steps]
    return compose(
        [
            replace(piece, noise_multiplier=size)
            for piece, size in zip(claim.steps, sizes, strict=True)
        ],
        claim.adjacency,
    )
