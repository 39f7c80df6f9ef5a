"""A distinguishing attack on whole fits, and the lower bound on epsilon that it implies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from skdpbayes.audit.fit import contribution, multipliers, units
from skdpbayes.audit.runs import joined, runs
from skdpbayes.mechanism.draws import Draw
from skdpbayes.mechanism.private_sum import Query, Release
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.privacy.accounting import PrivacyCurve, compose
from skdpbayes.privacy.report import PrivacySpent

if TYPE_CHECKING:
    from skdpbayes.audit.fit import Fit

_AT_A_TIME = 250  # trials in one call of the compiled program
_LEAST_NOISE = 0.1  # smallest noise multiplier given to the accountant
_SLOTS = 64  # of the chunk that holds the target alone


class _Target(NamedTuple):
    """The record that the attack looks for, and the noise of each step.

    Attributes
    ----------
    records : Records
        The target is at `place`.
    place : int
    bounds : array of shape (n_groups + 1,)
    sigmas : array of shape (n_steps,)
    """

    records: Records
    place: np.int32
    bounds: np.ndarray
    sigmas: np.ndarray


def _log_ratio(
    target: _Target,
    query: Query,
    blocks: Mapping[str, Block],
    mechanism: Mechanism,
    step: jax.Array,
    draw: Draw,
    release: Release,
) -> jax.Array:
    """Log-likelihood ratio for the target, given the release of a step."""
    where = (target.records, target.place, target.bounds, draw.noise)
    sigma = jnp.asarray(target.sigmas)[step]
    moved = contribution(query, blocks, mechanism, step, *where) / sigma
    seen = ravel_pytree(release)[0].astype(float) / (units(blocks, release) * sigma)
    gain = jnp.vdot(seen, moved) - jnp.vdot(moved, moved) / 2
    sampled = mechanism.rate.astype(float)
    without = jnp.where(sampled < 1, jnp.log1p(-jnp.minimum(sampled, 1 - 1e-9)), -jnp.inf)
    return jnp.logaddexp(without, jnp.log(sampled) + gain)[None]


def log_likelihood_ratios(
    side: Fit, target: Fit, record: int, n_trials: int, seed: int
) -> np.ndarray:
    """Log-likelihood ratios of "the target's record is there", for fits of one side."""
    bounds = np.array(target.records.bounds())
    context = _Target(
        replace(target.records, slots=_SLOTS),
        _place(target, record),
        bounds,
        multipliers(side),
    )
    plan = (side.model, side.solver, side.spec, side.records)
    trials = [side.keys(seed + i) for i in range(n_trials)]
    at_a_time = math.ceil(n_trials / math.ceil(n_trials / _AT_A_TIME))
    total = np.zeros(n_trials)
    for chain in range(side.spec.n_chains):
        keys = joined([own.chain(chain) for own in trials])
        found = runs(keys, *plan, _log_ratio, context, at_a_time=at_a_time)
        total += np.concatenate([kept.sum(axis=(1, 2)) for _, kept in found])
    return total


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
