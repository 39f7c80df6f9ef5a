"""Noise-aware inference for topics: what noisy expected counts say about the counts themselves.

Expected counts at topics with counts m are not the counts lambda at which the bound is highest: the
topics of a document's words are missing, and what is missing is filled in by m. To first order
(Dempster, Laird and Rubin 1977, section 3.2), with f the share of information that is observed,

    r_t = (1 - f) m_t + f lambda + noise of standard deviation tau.

So each release is an observation ``z_t = (r_t - (1 - f) m_t) / f`` of lambda with noise tau / f,
and releases are averaged with weights proportional to ``f^2`` and to those of `vips`. The share f
is simulated from the topics learnt so far (`skdpbayes.models.lda_information`), which is
post-processing. Given the average, each count has its posterior on the grid of ratios
(`skdpbayes.models.lda.shrunk`). In `vips` z_t is r_t: f is taken to be one, and intervals do not
include what unknown topics cost.

Releases are made at the posterior mean, where the first-order relation is most accurate; a draw, as
in `dpvi`, adds its own deviation to the error of the relation. Without noise f is one, and this is
variational Bayes as `vips` does it. The method is ours; ``docs/solvers/topics-gradients.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import TopicModel
from skdpbayes.models.protocols import Number, Params
from skdpbayes.posteriors.base import Posterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import (
    OneKindAfterOpenings,
    Point,
    Round,
    Scales,
    Sums,
    opening_rounds,
)


class AwareCounts(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    params: Params
    information: jax.Array  # average of f^2, (V, K)
    sums: jax.Array  # average of f^2 z, (V, K)
    variance: jax.Array  # of the noise in `sums`, in units of one round's, (V, K)
    noise: jax.Array  # standard deviation of the noise of a round


@pytree
@dataclass(frozen=True)
class TopicsNADPVI(OneKindAfterOpenings):
    """Rounds of expected counts, corrected for missing information.

    Attributes
    ----------
    n_openings : int
        Number of the model's openings.
    least_weight : float
        Least weight of a round in the averages, ``2 / (t + 2)`` in round t.
    clipping_norm : float
        Clipping norm of a document, for the report.
    """

    n_openings: Number
    least_weight: Number
    clipping_norm: Number

    def init(self, model: TopicModel, key: jax.Array) -> AwareCounts:
        """State before any release."""
        del key
        nothing = model.zeros()["topics"]
        zero = jnp.zeros((), jnp.float32)
        return AwareCounts(model.init(), nothing, nothing, nothing, zero)

    def rounds(self, model: TopicModel, mechanism: Mechanism) -> tuple[Round[AwareCounts], ...]:
        """The model's openings, once each, and the repeated round."""
        del mechanism

        def mean(state: AwareCounts, key: jax.Array) -> tuple[Params, jax.Array]:
            return state.params, model.observed(state.params, key)

        def update(
            state: AwareCounts, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> AwareCounts:
            topics, share = point
            counts, tau = estimate["topics"], scales["topics"]
            filled = model.expected_counts(topics, counts, tau)
            t = (step - self.n_openings).astype(jnp.float32)
            w = jnp.maximum(2 / (t + 2), self.least_weight)
            information = (1 - w) * state.information + w * share**2
            sums = (1 - w) * state.sums + w * share * (counts - (1 - share) * filled)
            variance = (1 - w) ** 2 * state.variance + (w * share) ** 2
            params = model.m_step(
                state.params,
                {"topics": sums / information},
                {"topics": tau * jnp.sqrt(variance) / information},
            )
            return AwareCounts(params, information, sums, variance, tau)

        repeated = Round(
            point=mean,
            query=lambda state, point: model.statistics(point[0]),
            blocks=lambda state: model.blocks(),
            update=update,
        )
        return *opening_rounds(model.openings()), repeated

    def posterior(self, model: TopicModel, state: AwareCounts) -> Posterior:
        """The model's posterior at the final parameters."""
        return model.posterior(state.params)

    def diagnostics(self, model: TopicModel, state: AwareCounts, posterior: Any) -> dict[str, Any]:
        """Noise of the averaged counts (root mean square), and the mean share of information."""
        del model, posterior
        deviation = jnp.sqrt(state.variance) / state.information * state.noise
        return {
            "noise_std": {"topics": float(jnp.sqrt(jnp.mean(deviation**2)))},
            "observed_share": float(jnp.mean(jnp.sqrt(state.information))),
        }
